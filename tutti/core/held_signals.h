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
#pragma once

namespace tutti {

void hold_stop_signals() noexcept;
void release_stop_signals() noexcept;

}  // namespace tutti
