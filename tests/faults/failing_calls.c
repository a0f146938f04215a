/* Makes the Nth call that changes or locks a file under a folder fail.

   A preload library: it stands before libc in a process that does not know of
   it (injection.py). Nothing is counted until `faults_arm`. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_length; /* 0: not armed */
static atomic_long calls;
static atomic_bool has_failed;
static long at;
static int fault; /* an errno; or one of those below */
static bool lasts;
static int trace;

/* What STOP leaves on the disk is what a kill does: nothing is changed any more,
   and the process lives on. */
enum { KILL_BEFORE = -1, KILL_HALFWAY = -2, STOP_BEFORE = -3, STOP_HALFWAY = -4 };

void faults_arm(const char *folder, long nth, int what, int stays, int log) {
  at = nth, fault = what, lasts = stays, trace = log;
  atomic_store(&calls, 0);
  atomic_store(&has_failed, 0);
  snprintf(root, sizeof root, "%s", folder);
  root_length = strlen(root);
}

/* How many there were. */
long faults_disarm(void) {
  root_length = 0;
  return atomic_load(&calls);
}

static bool is_below(int folder, const char *path, char *whole, size_t size) {
  char link[64];
  size_t n = 0;
  if (!path || path[0] != '/') { /* a descriptor, or relative to one */
    if (folder == AT_FDCWD) {
      if (syscall(SYS_getcwd, whole, PATH_MAX) < 0) return false;
      n = strlen(whole);
    } else {
      snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
      long got = syscall(SYS_readlinkat, AT_FDCWD, link, whole, PATH_MAX - 1);
      if (got < 0) return false;
      n = got;
    }
    whole[n] = 0;
    if (path) snprintf(whole + n, size - n, "/%s", path);
  } else {
    snprintf(whole, size, "%s", path);
  }
  return !strncmp(whole, root, root_length) &&
         (whole[root_length] == '/' || !whole[root_length]);
}

/* The errno that this call is to fail with, or 0. */
static int counted(const char *name, int folder, const char *path, bool grows) {
  if (!root_length) return 0;
  char whole[2 * PATH_MAX], line[2 * PATH_MAX + 64];
  int before = errno;
  bool here = is_below(folder, path, whole, sizeof whole);
  errno = before;
  if (!here) return 0;
  if (trace >= 0) {
    int n = snprintf(line, sizeof line, "%s %s\n", name, whole + root_length);
    syscall(SYS_write, trace, line, (size_t)n);
  }
  bool now = atomic_fetch_add(&calls, 1) + 1 == at;
  bool stopped = fault <= STOP_BEFORE;
  bool after = (stopped || (lasts && grows)) && atomic_load(&has_failed);
  if (!now && !after) return 0;
  atomic_store(&has_failed, 1);
  if (fault == KILL_BEFORE) syscall(SYS_kill, getpid(), SIGKILL);
  return stopped && !(now && fault == STOP_HALFWAY) ? EIO : fault;
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL_IF(condition) \
  do { \
    int number = (condition); \
    if (number > 0) return errno = number, -1; \
  } while (0)

/* name, return type, parameters, arguments, folder, path, whether it grows */
#define CALL(name, type, parameters, arguments, folder, path, grows) \
  type name parameters { \
    REAL(name); \
    FAIL_IF(counted(#name, folder, path, grows)); \
    return real arguments; \
  }

CALL(rename, int, (const char *a, const char *b), (a, b), AT_FDCWD, b, true)
CALL(renameat, int, (int c, const char *a, int d, const char *b), (c, a, d, b),
     d, b, true)
CALL(renameat2, int,
     (int c, const char *a, int d, const char *b, unsigned f), (c, a, d, b, f),
     d, b, true)
CALL(link, int, (const char *a, const char *b), (a, b), AT_FDCWD, b, true)
CALL(linkat, int, (int c, const char *a, int d, const char *b, int f),
     (c, a, d, b, f), d, b, true)
CALL(symlink, int, (const char *a, const char *b), (a, b), AT_FDCWD, b, true)
CALL(unlink, int, (const char *a), (a), AT_FDCWD, a, false)
CALL(unlinkat, int, (int d, const char *a, int f), (d, a, f), d, a, false)
CALL(rmdir, int, (const char *a), (a), AT_FDCWD, a, false)
CALL(mkdir, int, (const char *a, mode_t m), (a, m), AT_FDCWD, a, true)
CALL(mkdirat, int, (int d, const char *a, mode_t m), (d, a, m), d, a, true)
CALL(chmod, int, (const char *a, mode_t m), (a, m), AT_FDCWD, a, false)
CALL(fchmod, int, (int d, mode_t m), (d, m), d, NULL, false)
CALL(fchmodat, int, (int d, const char *a, mode_t m, int f), (d, a, m, f), d, a,
     false)
CALL(fsync, int, (int d), (d), d, NULL, false)
CALL(fdatasync, int, (int d), (d), d, NULL, false)
CALL(flock, int, (int d, int o), (d, o), d, NULL, false)
CALL(ftruncate, int, (int d, off_t n), (d, n), d, NULL, false)
CALL(ftruncate64, int, (int d, off64_t n), (d, n), d, NULL, false)
CALL(truncate, int, (const char *a, off_t n), (a, n), AT_FDCWD, a, false)
CALL(writev, ssize_t, (int d, const struct iovec *v, int n), (d, v, n), d, NULL,
     true)
CALL(sendfile, ssize_t, (int d, int s, off_t *o, size_t n), (d, s, o, n), d,
     NULL, true)
CALL(sendfile64, ssize_t, (int d, int s, off64_t *o, size_t n), (d, s, o, n), d,
     NULL, true)

/* It returns its errors. */
int posix_fallocate(int d, off_t o, off_t n) {
  REAL(posix_fallocate);
  int error = counted("posix_fallocate", d, NULL, true);
  return error > 0 ? error : real(d, o, n);
}
int posix_fallocate64(int d, off64_t o, off64_t n) {
  REAL(posix_fallocate64);
  int error = counted("posix_fallocate", d, NULL, true);
  return error > 0 ? error : real(d, o, n);
}

#define WRITE(name, parameters, arguments, half) \
  ssize_t name parameters { \
    REAL(name); \
    int error = counted(#name, d, NULL, true); \
    if (error == KILL_HALFWAY || error == STOP_HALFWAY) { \
      (void)!real half; \
      if (error == KILL_HALFWAY) syscall(SYS_kill, getpid(), SIGKILL); \
      error = EIO; \
    } \
    FAIL_IF(error); \
    return real arguments; \
  }
WRITE(write, (int d, const void *b, size_t n), (d, b, n), (d, b, n / 2))
WRITE(pwrite, (int d, const void *b, size_t n, off_t o), (d, b, n, o),
      (d, b, n / 2, o))
WRITE(pwrite64, (int d, const void *b, size_t n, off64_t o), (d, b, n, o),
      (d, b, n / 2, o))

#define OPEN(name, parameters, before, folder) \
  int name parameters { \
    REAL(name); \
    mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { \
      va_list rest; \
      va_start(rest, flags); \
      mode = va_arg(rest, mode_t); \
      va_end(rest); \
    } \
    if (flags & (O_CREAT | O_WRONLY | O_RDWR)) \
      FAIL_IF(counted(#name, folder, path, true)); \
    return real before; \
  }
OPEN(open, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
OPEN(openat, (int d, const char *path, int flags, ...), (d, path, flags, mode),
     d)
OPEN(openat64, (int d, const char *path, int flags, ...),
     (d, path, flags, mode), d)

/* Of a file that was written; it is closed all the same, as Linux does. */
int close(int d) {
  REAL(close);
  int error = 0;
  if (root_length) {
    int before = errno, flags = fcntl(d, F_GETFL);
    errno = before;
    if (flags >= 0 && flags & (O_WRONLY | O_RDWR))
      error = counted("close", d, NULL, false);
  }
  int status = real(d);
  FAIL_IF(error);
  return status;
}
