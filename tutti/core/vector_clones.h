// TUTTI_VECTOR_CLONES before a function compiles it for several generations of processors; the
// right one is chosen when the program starts. For loops over arrays, where a plain x86-64 build
// would leave most of the machine idle. Sanitizers run before that choice is made, so they get the
// plain one.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TUTTI_VECTOR_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TUTTI_VECTOR_CLONES
#endif
