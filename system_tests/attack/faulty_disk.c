/* A faulty file system: loaded before libc (LD_PRELOAD), it makes file calls fail on request.

   The file named by FAULTY_DISK holds a `struct rules`, shared with the test. Only files below
   its prefix are affected. Without a rule each call costs one comparison. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum mode { HEALTHY, FULL, BROKEN, READ_ONLY, SHORT_WRITES, TORN, FAILING_SYNC };

struct rules {
  int64_t mode;
  int64_t budget;   /* bytes that may still be written before FULL and TORN take effect */
  int64_t injected; /* faults so far */
  int64_t torn;     /* processes killed within a write */
  char prefix[PATH_MAX];
};

static struct rules *rules;

__attribute__((constructor)) static void attach(void) {
  const char *name = getenv("FAULTY_DISK");
  if (!name) return;
  int fd = open(name, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void *mapped = mmap(NULL, sizeof *rules, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (mapped != MAP_FAILED) rules = mapped;
}

#define REAL(name) \
  static __typeof__(&name) real; \
  if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int fails(int error) {
  __atomic_add_fetch(&rules->injected, 1, __ATOMIC_RELAXED);
  errno = error;
  return -1;
}

static int is_below(const char *path) {
  return strncmp(path, rules->prefix, strlen(rules->prefix)) == 0;
}

static int path_of(int fd, char *path) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, PATH_MAX - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return is_below(path);
}

/* The error of a change at a path, or 0. */
static int path_error(const char *path) {
  if (!rules || rules->mode == HEALTHY || !path || !is_below(path)) return 0;
  if (rules->mode == READ_ONLY) return EROFS;
  if (rules->mode == BROKEN) return EIO;
  if (rules->mode == FULL && rules->budget <= 0) return ENOSPC;
  return 0;
}

static int error_of(int fd) {
  char path[PATH_MAX];
  if (!rules || rules->mode == HEALTHY || !path_of(fd, path)) return 0;
  return path_error(path);
}

/* How many of these bytes may be written, or -1 with errno. */
static ssize_t allowed(int fd, size_t count) {
  char path[PATH_MAX];
  if (!rules || rules->mode == HEALTHY || count == 0 || !path_of(fd, path)) return count;
  if (rules->mode == READ_ONLY) return fails(EROFS);
  if (rules->mode == BROKEN) return fails(EIO);
  if (rules->mode == SHORT_WRITES && count > 1) {
    __atomic_add_fetch(&rules->injected, 1, __ATOMIC_RELAXED);
    return (count + 1) / 2;
  }
  size_t length = strlen(path);
  int is_log = length > 4 && strcmp(path + length - 4, ".log") == 0;
  if (rules->mode == FULL || (rules->mode == TORN && is_log)) {
    int64_t left = __atomic_fetch_sub(&rules->budget, count, __ATOMIC_RELAXED);
    if (left >= (int64_t)count) return count;
    if (rules->mode == FULL && left <= 0) return fails(ENOSPC);
    __atomic_add_fetch(&rules->injected, 1, __ATOMIC_RELAXED);
    return left > 0 ? left : 1;
  }
  return count;
}

/* A write that was torn is the last thing that its process does. */
static void tear(size_t wanted, ssize_t written) {
  if (!rules || rules->mode != TORN || written < 0 || (size_t)written == wanted) return;
  rules->mode = HEALTHY;
  __atomic_add_fetch(&rules->torn, 1, __ATOMIC_SEQ_CST);
  kill(getpid(), SIGKILL);
}

ssize_t write(int fd, const void *data, size_t count) {
  REAL(write);
  ssize_t room = allowed(fd, count);
  if (room < 0) return -1;
  ssize_t done = real(fd, data, room);
  if ((size_t)room != count) tear(count, done);
  return done;
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at) {
  REAL(pwrite64);
  ssize_t room = allowed(fd, count);
  if (room < 0) return -1;
  ssize_t done = real(fd, data, room, at);
  if ((size_t)room != count) tear(count, done);
  return done;
}

static size_t total(const struct iovec *pieces, int count) {
  size_t sum = 0;
  for (int i = 0; i < count; i++) sum += pieces[i].iov_len;
  return sum;
}

ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t at) {
  REAL(pwritev64);
  size_t wanted = total(pieces, count);
  ssize_t room = allowed(fd, wanted);
  if (room < 0) return -1;
  if ((size_t)room == wanted) return real(fd, pieces, count, at);
  ssize_t done = 0;
  for (int i = 0; i < count && done < room; i++) {
    struct iovec piece = pieces[i];
    if ((ssize_t)piece.iov_len > room - done) piece.iov_len = room - done;
    ssize_t written = real(fd, &piece, 1, at + done);
    if (written < 0) return done ? done : -1;
    done += written;
  }
  tear(wanted, done);
  return done;
}

ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) {
  return pwritev64(fd, pieces, count, at);
}

ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t at, int flags) {
  (void)flags;
  return pwritev64(fd, pieces, count, at);
}


/* What the libc calls pwritev2 for programs with large files, such as Python. */
ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off64_t at, int flags) {
  (void)flags;
  return pwritev64(fd, pieces, count, at);
}

static int sync_error(int fd) {
  char path[PATH_MAX];
  if (rules && rules->mode == FAILING_SYNC && path_of(fd, path)) return EIO;
  int error = error_of(fd);
  return error == EIO ? error : 0;
}

int fsync(int fd) {
  REAL(fsync);
  int error = sync_error(fd);
  return error ? fails(error) : real(fd);
}

int fdatasync(int fd) {
  REAL(fdatasync);
  int error = sync_error(fd);
  return error ? fails(error) : real(fd);
}

int ftruncate64(int fd, off64_t size) {
  REAL(ftruncate64);
  int error = error_of(fd);
  return error && error != ENOSPC ? fails(error) : real(fd, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size) {
  REAL(posix_fallocate64);
  int error = error_of(fd);
  if (error) fails(error);
  return error ? error : real(fd, at, size);
}

int open64(const char *path, int flags, ...) {
  REAL(open64);
  va_list more;
  va_start(more, flags);
  mode_t mode = va_arg(more, mode_t);
  va_end(more);
  int error = path_error(path);
  int changes = flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC);
  if (error == EROFS && changes) return fails(error);
  if (error == ENOSPC && (flags & O_CREAT) && access(path, F_OK) != 0) return fails(error);
  return real(path, flags, mode);
}

int mkdir(const char *path, mode_t mode) {
  REAL(mkdir);
  int error = path_error(path);
  return error ? fails(error) : real(path, mode);
}

int rename(const char *from, const char *to) {
  REAL(rename);
  int error = path_error(to);
  return error && error != ENOSPC ? fails(error) : real(from, to);
}

int unlink(const char *path) {
  REAL(unlink);
  int error = path_error(path);
  return error && error != ENOSPC ? fails(error) : real(path);
}

int rmdir(const char *path) {
  REAL(rmdir);
  int error = path_error(path);
  return error && error != ENOSPC ? fails(error) : real(path);
}
