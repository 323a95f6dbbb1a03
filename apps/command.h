// The commands of the `tutti` program that live in the front door itself (torch-free, instant).
// The stages need libtorch and live in the sibling executable `tutti-run`.
#pragma once

namespace tutti::apps {

// Each gets argv as if it were a program of its own (argv[0] is "tutti NAME"), returns the exit
// code and may throw; main reports the exception.
int run_config(int argc, char** argv);
int run_doctor(int argc, char** argv);
int run_launch(int argc, char** argv);
int run_pack(int argc, char** argv);
int run_parallel(int argc, char** argv);
int run_map(int argc, char** argv);
int run_status(int argc, char** argv);
int run_wait(int argc, char** argv);
int run_gather(int argc, char** argv);
int run_cancel(int argc, char** argv);
int run_worker(int argc, char** argv);

struct Command {
  const char* name;
  const char* summary;
  int (*run)(int argc, char** argv);  // null: another executable's, which needs libtorch
  const char* sibling = "tutti-run";  // that executable
};

}  // namespace tutti::apps
