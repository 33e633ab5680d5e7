/*
 * A library for LD_PRELOAD that sets the wall clock of a server. It adds to
 * CLOCK_REALTIME the number of seconds in the file that the environment variable
 * TORTURE_CLOCK names: 8 bytes, which are mapped into memory and may change at any
 * time. Other clocks are not affected. The functions that wait until a given time
 * subtract the same number, so that waits take no longer.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t zero;
static const volatile int64_t *offset = &zero;

__attribute__((constructor)) static void map(void)
{
	const char *path = getenv("TORTURE_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	void *p = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (p != MAP_FAILED)
		offset = p;
}

int clock_gettime(clockid_t clock, struct timespec *ts)
{
	int failed = syscall(SYS_clock_gettime, clock, ts);
	if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
		ts->tv_sec += *offset;
	return failed;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	struct timespec ts;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &ts))
		return -1;
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *seconds)
{
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	if (seconds)
		*seconds = ts.tv_sec;
	return ts.tv_sec;
}

/* Converts a time of the changed wall clock to real time. A small number of seconds is a monotonic time. */
static struct timespec real(const struct timespec *until)
{
	struct timespec ts = *until;
	if (ts.tv_sec > 1000000000)
		ts.tv_sec -= *offset;
	return ts;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
	static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
	if (!next) {
		/* On x86-64, there is an older version, for another pthread_cond_t. */
		void *found = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
		next = found ? found : dlsym(RTLD_NEXT, "pthread_cond_timedwait");
	}
	struct timespec ts = real(until);
	return next(cond, mutex, &ts);
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t clock, const struct timespec *restrict until)
{
	static int (*next)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
	if (!next)
		next = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
	struct timespec ts = real(until);
	return next(cond, mutex, clock, &ts);
}
