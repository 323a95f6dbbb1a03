// Signals that ask a program to stop wait while it is being loaded.
//
// A program that links torch takes half a second to reach main(), and a signal in that time would end
// it without a word. So the small program that becomes it holds them; a mask outlives exec:
//
//   hold_stop_signals();                  // in tutti
//   ::execv("tutti-run", ...);
//   StopSignals signals;                  // in tutti-run: handlers stand, then the mask is lifted
//
// A handler, or a signalfd, then gets what came meanwhile. For the calling thread and those it starts.
//
// Before a run has its handlers, and between two runs, SIGINT and SIGTERM end the program by default, which is a shell's
// 130 or 143 without a word; with
//
//   end_on_stop_signals();
//
// it ends with the documented code (130, 85) and a line.
#pragma once

namespace tutti {

void hold_stop_signals() noexcept;
void release_stop_signals() noexcept;
// What is ignored (a shell's background job) or handled stays so.
void end_on_stop_signals() noexcept;

// As whoever started us wants it: a shell has its background jobs ignore Ctrl-C (SIGINT), nohup a terminal that is gone
// (SIGHUP). Ask before a handler is put in its place.
bool is_ignored(int signal) noexcept;

}  // namespace tutti
