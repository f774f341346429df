/* Takes the power away from a process that writes a SQLite store: what was not synced is lost, all of it or any part.

   Preloaded, it remembers for the files of a store what each write replaced, and forgets that when the file is synced.
   At the cut it puts the files back as they were after their last sync, writes a chosen part of the unsynced sectors
   again, in any order of fate as a disk does, and kills the process. It holds its lock from then on, so that no thread
   writes any more. The index of the log (-shm) is shared memory and not tracked: SQLite makes it anew after a crash. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define SECTOR 512
#define STORE "store.db"
#define INDEX "-shm"

struct change {
    struct change *before;
    dev_t dev;
    ino_t ino;
    int fd;
    off_t size;      /* of the file before the change */
    off_t offset;
    size_t length;   /* 0: a truncation */
    size_t old_length;
    char *old;       /* what the change replaced */
    char *new;       /* what it wrote; read at the cut */
    off_t new_size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct change *last;
static long writes, syncs, cut_at_write = -1, cut_at_sync = -1;
static unsigned kept;

static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

static void find_real(void) {
    if (real_pwrite == NULL) {
        real_pwrite = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite64");
        real_ftruncate = (int (*)(int, off_t))dlsym(RTLD_NEXT, "ftruncate64");
        real_fsync = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
        real_fdatasync = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    }
}

static int is_tracked(int fd, struct stat *status) {
    char link[64], path[4096];
    int error = errno;
    if (fstat(fd, status) != 0 || !S_ISREG(status->st_mode)) {
        errno = error;
        return 0;
    }
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    errno = error;
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, "/" STORE) != NULL && strstr(path, INDEX) == NULL;
}

/* One duplicate a file, never closed: closing any descriptor of a file would drop the locks that SQLite holds on it. */
static int handle(int fd, const struct stat *status) {
    static struct { dev_t dev; ino_t ino; int fd; } known[64];
    for (int i = 0; i < 64; i++) {
        if (known[i].fd != 0 && known[i].dev == status->st_dev && known[i].ino == status->st_ino) return known[i].fd;
        if (known[i].fd == 0) {
            known[i].dev = status->st_dev;
            known[i].ino = status->st_ino;
            return known[i].fd = dup(fd);
        }
    }
    abort();
}

static void remember(int fd, const struct stat *status, off_t offset, size_t length, off_t tail) {
    struct change *change = calloc(1, sizeof *change);
    change->dev = status->st_dev;
    change->ino = status->st_ino;
    change->size = status->st_size;
    change->offset = offset;
    change->length = length;
    change->fd = handle(fd, status);
    size_t wanted = length ? length : (size_t)tail;
    change->old = malloc(wanted ? wanted : 1);
    ssize_t got = pread(fd, change->old, wanted, offset);
    change->old_length = got > 0 ? (size_t)got : 0;
    change->before = last;
    last = change;
}

static void forget(const struct stat *status) {
    struct change **place = &last;
    while (*place != NULL) {
        struct change *change = *place;
        if (change->dev == status->st_dev && change->ino == status->st_ino) {
            *place = change->before;
            free(change->old);
            free(change);
        } else {
            place = &change->before;
        }
    }
}

static int is_kept(void) {
    if (kept == 0) return 0;
    kept = kept * 1103515245u + 12345u;
    return (kept >> 16) & 1;
}

static void cut(void) {
    struct change *first = NULL;
    while (last != NULL) {  /* the newest first: each then finds the file as it left it */
        struct change *change = last;
        struct stat status;
        last = change->before;
        fstat(change->fd, &status);
        change->new_size = status.st_size;
        change->new = malloc(change->length ? change->length : 1);
        if (change->length) pread(change->fd, change->new, change->length, change->offset);
        real_pwrite(change->fd, change->old, change->old_length, change->offset);
        real_ftruncate(change->fd, change->size);
        change->before = first;
        first = change;
    }
    for (struct change *change = first; change != NULL; change = change->before) {
        if (change->length == 0 && is_kept()) real_ftruncate(change->fd, change->new_size);
        for (size_t done = 0; done < change->length;) {
            size_t size = SECTOR - (size_t)((change->offset + (off_t)done) % SECTOR);
            if (size > change->length - done) size = change->length - done;
            if (is_kept()) real_pwrite(change->fd, change->new + done, size, change->offset + (off_t)done);
            done += size;
        }
    }
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Cut the power now. `seed` decides which unsynced sectors are there all the same; 0: none. */
void loopwarden_cut_power(unsigned seed) {
    pthread_mutex_lock(&lock);
    kept = seed;
    cut();
}

/* Cut it before the write, or before the sync, with this number from now; 0: never. */
void loopwarden_cut_power_at(long write, long sync, unsigned seed) {
    pthread_mutex_lock(&lock);
    writes = syncs = 0;
    cut_at_write = write;
    cut_at_sync = sync;
    kept = seed;
    pthread_mutex_unlock(&lock);
}

long loopwarden_writes(void) { return writes; }
long loopwarden_syncs(void) { return syncs; }

ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset) {
    struct stat status;
    find_real();
    if (!is_tracked(fd, &status)) return real_pwrite(fd, data, length, offset);
    pthread_mutex_lock(&lock);
    if (++writes == cut_at_write) cut();
    fstat(fd, &status);
    if (length) remember(fd, &status, offset, length, 0);
    ssize_t done = real_pwrite(fd, data, length, offset);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return pwrite64(fd, data, length, offset); }

int ftruncate64(int fd, off_t size) {
    struct stat status;
    find_real();
    if (!is_tracked(fd, &status)) return real_ftruncate(fd, size);
    pthread_mutex_lock(&lock);
    fstat(fd, &status);
    remember(fd, &status, size, 0, status.st_size > size ? status.st_size - size : 0);
    int done = real_ftruncate(fd, size);
    pthread_mutex_unlock(&lock);
    return done;
}

int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int synced(int fd, int (*real)(int)) {
    struct stat status;
    if (!is_tracked(fd, &status)) return real(fd);
    pthread_mutex_lock(&lock);
    if (++syncs == cut_at_sync) cut();
    int done = real(fd);
    if (done == 0) forget(&status);
    pthread_mutex_unlock(&lock);
    return done;
}

int fsync(int fd) {
    find_real();
    return synced(fd, real_fsync);
}

int fdatasync(int fd) {
    find_real();
    return synced(fd, real_fdatasync);
}
