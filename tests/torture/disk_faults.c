// Loaded before libc: the n-th change that this process makes below one directory fails, as a full or broken disk has it.
//
// Python, SQLite and Rust's libraries all come through here. What is read is left alone.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char root[4096];
static atomic_long count;
static long fails_at;  // 0: never, changes are only counted
static int fails_with, stays;
static char failed[8400];
static long failed_at;

// `stays`: every later change that needs room fails too, and for another reason than a full disk every change.
__attribute__((visibility("default"))) void faults_begin(const char *below, long at, int error, int from_then_on) {
    snprintf(root, sizeof root, "%s", below);
    atomic_store(&count, 0);
    fails_at = at;
    fails_with = error;
    stays = from_then_on;
    failed[0] = 0;
    failed_at = 0;
}
__attribute__((visibility("default"))) long faults_end(void) {
    root[0] = 0;
    return count;
}
__attribute__((visibility("default"))) const char *faults_failed(void) { return failed; }
__attribute__((visibility("default"))) long faults_failed_at(void) { return failed_at; }

static int fails(const char *call, int directory, const char *path, int needs_room) {
    if (!root[0]) return 0;
    char full[8192], link[64], folder[4096] = "";
    int saved = errno;
    if (path && path[0] == '/') {
        snprintf(full, sizeof full, "%s", path);
    } else {
        ssize_t length;
        if (directory == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
        length = readlink(link, folder, sizeof folder - 1);
        folder[length > 0 ? length : 0] = 0;
        snprintf(full, sizeof full, path ? "%s/%s" : "%s", folder, path);
    }
    errno = saved;
    if (strncmp(full, root, strlen(root))) return 0;
    long now = ++count;
    if (!fails_at || now < fails_at || (now > fails_at && !stays)) return 0;
    if (fails_with == ENOSPC && !needs_room) {
        if (!stays) fails_at = now + 1;  // the next one that needs room
        return 0;
    }
    if (!failed[0]) {
        snprintf(failed, sizeof failed, "%s %s", call, full);
        failed_at = now;
    }
    errno = fails_with;
    return 1;
}

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define PUBLIC __attribute__((visibility("default")))

#define BY_FILE(result, name, takes, gives, file, room) \
    PUBLIC result name takes { \
        NEXT(name); \
        return fails(#name, file, NULL, room) ? -1 : next gives; \
    }
#define BY_PATH(name, takes, gives, folder, path, room) \
    PUBLIC int name takes { \
        NEXT(name); \
        return fails(#name, folder, path, room) ? -1 : next gives; \
    }

BY_FILE(ssize_t, write, (int f, const void *b, size_t n), (f, b, n), f, 1)
BY_FILE(ssize_t, pwrite, (int f, const void *b, size_t n, off_t o), (f, b, n, o), f, 1)
BY_FILE(ssize_t, pwrite64, (int f, const void *b, size_t n, off64_t o), (f, b, n, o), f, 1)
BY_FILE(ssize_t, writev, (int f, const struct iovec *v, int n), (f, v, n), f, 1)
BY_FILE(ssize_t, sendfile, (int f, int from, off_t *o, size_t n), (f, from, o, n), f, 1)
BY_FILE(ssize_t, sendfile64, (int f, int from, off64_t *o, size_t n), (f, from, o, n), f, 1)
BY_FILE(ssize_t, copy_file_range, (int from, off64_t *a, int f, off64_t *b, size_t n, unsigned g), (from, a, f, b, n, g), f, 1)
BY_FILE(int, fsync, (int f), (f), f, 1)
BY_FILE(int, fdatasync, (int f), (f), f, 1)
BY_FILE(int, ftruncate, (int f, off_t n), (f, n), f, 0)
BY_FILE(int, ftruncate64, (int f, off64_t n), (f, n), f, 0)
BY_FILE(int, fchmod, (int f, mode_t m), (f, m), f, 0)
BY_FILE(int, fchown, (int f, uid_t u, gid_t g), (f, u, g), f, 0)
BY_PATH(rename, (const char *a, const char *b), (a, b), AT_FDCWD, b, 0)
BY_PATH(renameat, (int d, const char *a, int e, const char *b), (d, a, e, b), e, b, 0)
BY_PATH(link, (const char *a, const char *b), (a, b), AT_FDCWD, b, 1)
BY_PATH(linkat, (int d, const char *a, int e, const char *b, int g), (d, a, e, b, g), e, b, 1)
BY_PATH(symlink, (const char *a, const char *b), (a, b), AT_FDCWD, b, 1)
BY_PATH(symlinkat, (const char *a, int e, const char *b), (a, e, b), e, b, 1)
BY_PATH(mkdir, (const char *p, mode_t m), (p, m), AT_FDCWD, p, 1)
BY_PATH(mkdirat, (int d, const char *p, mode_t m), (d, p, m), d, p, 1)
BY_PATH(unlink, (const char *p), (p), AT_FDCWD, p, 0)
BY_PATH(unlinkat, (int d, const char *p, int g), (d, p, g), d, p, 0)
BY_PATH(rmdir, (const char *p), (p), AT_FDCWD, p, 0)
BY_PATH(chmod, (const char *p, mode_t m), (p, m), AT_FDCWD, p, 0)
BY_PATH(utimensat, (int d, const char *p, const struct timespec t[2], int g), (d, p, t, g), d, p, 0)

// Only those that may make a file.
#define OPEN(name, takes, gives, folder) \
    PUBLIC int name takes { \
        mode_t mode = 0; \
        if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) { \
            va_list more; \
            va_start(more, flags); \
            mode = va_arg(more, mode_t); \
            va_end(more); \
        } \
        NEXT(name); \
        if ((flags & O_CREAT) && fails(#name, folder, path, 1)) return -1; \
        return next gives; \
    }
OPEN(open, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode), AT_FDCWD)
OPEN(openat, (int d, const char *path, int flags, ...), (d, path, flags, mode), d)
OPEN(openat64, (int d, const char *path, int flags, ...), (d, path, flags, mode), d)
