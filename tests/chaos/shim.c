// Preloaded into the programs of a campaign: a wall clock that is wrong, and a disk whose fsync takes long. The file CHAOS_SHIM has two
// 64-bit numbers, seconds and milliseconds, which may change while the program runs. Less than no milliseconds: one fsync fails, the next
// ones go well, as Linux tells of lost writes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*real_clock_gettime)(clockid_t, struct timespec*);
static volatile int64_t* numbers;

__attribute__((constructor)) static void begin(void) {
  real_clock_gettime = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const char* path = getenv("CHAOS_SHIM");
  const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void* page = mmap(0, 16, PROT_READ, MAP_SHARED, fd, 0);
  if (page != MAP_FAILED) numbers = (volatile int64_t*)page;
  close(fd);
}

static int wait_for_disk(void) {
  static atomic_int has_failed;
  const int64_t ms = numbers ? numbers[1] : 0;
  if (ms < 0 && !atomic_exchange(&has_failed, 1)) {
    errno = EIO;
    return -1;
  }
  const struct timespec time = {ms / 1000, ms % 1000 * 1000000};
  if (ms > 0) nanosleep(&time, 0);
  return 0;
}

int fsync(int fd) {
  if (wait_for_disk() != 0) return -1;
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int fdatasync(int fd) {
  if (wait_for_disk() != 0) return -1;
  return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}

int clock_gettime(clockid_t clock, struct timespec* out) {
  if (!real_clock_gettime) begin();
  const int code = real_clock_gettime(clock, out);
  if (code == 0 && clock == CLOCK_REALTIME && numbers) out->tv_sec += numbers[0];
  return code;
}

int gettimeofday(struct timeval* restrict out, void* restrict zone) {
  (void)zone;
  struct timespec now;
  const int code = clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return code;
}

time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
