// SPDX-License-Identifier: MIT
/*
 * card.c - a device, or the simulated card's process. card.h says what it does.
 */
#define _GNU_SOURCE
#include "card.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NS = 1000000000, PIPE_BYTES = 1 << 20 };

int64_t card_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * NS + t.tv_nsec;
}

bool card_tells(const struct card *c)
{
	struct card_info info;

	return c->shared || !ioctl(c->fd, CARD_INFO, &info);
}

int64_t card_due(const struct card *c, uint32_t number)
{
	struct card_info info;

	if (c->shared)
		return atomic_load(&c->shared->start_ns) + number * c->period_ns;
	return ioctl(c->fd, CARD_INFO, &info) ? 0 : info.start_ns + number * info.period_ns;
}

void card_go(struct card *c)
{
	if (c->shared)
		atomic_store(&c->shared->start_ns, card_now() + c->period_ns);
}

void card_take(struct card *c, uint32_t slots)
{
	if (c->shared)
		atomic_store(&c->shared->taken, slots);
}

static void sleep_until(int64_t ns)
{
	struct timespec t = { ns / NS, ns % NS };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

static void fill(unsigned char *frame, size_t size, uint32_t number)
{
	uint64_t *words = (uint64_t *)frame;

	for (size_t i = 0; i < size / sizeof(*words); i++)
		words[i] = card_word(number, i);
}

static void write_all(int fd, const void *data, size_t size)
{
	const unsigned char *p = data;

	while (size) {
		ssize_t n = write(fd, p, size);

		if (n < 0 && errno != EINTR)
			_exit(1);
		if (n > 0) {
			p += n;
			size -= (size_t)n;
		}
	}
}

/* Each frame goes into the pipe; it waits where the reader is slow. */
static void run_pipe(const struct card *c, int out)
{
	unsigned char *frame = malloc(c->frame);

	for (uint32_t n = 0; frame && n < c->frames; n++) {
		fill(frame, c->frame, n);
		sleep_until(card_due(c, n));
		write_all(out, frame, c->frame);
	}
}

/* A frame that finds all slots full is lost, as a card loses it. */
static void run_ring(const struct card *c, int out)
{
	uint32_t filled = 0;

	for (uint32_t n = 0; n < c->frames; n++) {
		uint32_t slot = filled % c->slots;
		bool room = filled - atomic_load(&c->shared->taken) < c->slots;

		if (room)
			fill(c->ring + slot * c->frame, c->frame, n);
		sleep_until(card_due(c, n));
		if (room) {
			filled++;
			write_all(out, &filled, sizeof(filled));
		}
	}
}

static void run(const struct card *c, int out)
{
	struct sched_param priority = { .sched_priority = c->priority };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (c->priority)
		sched_setscheduler(0, SCHED_FIFO, &priority);	/* the reader warns if it may not */
	while (!atomic_load(&c->shared->start_ns))
		sleep_until(card_now() + NS / 1000);
	if (c->slots)
		run_ring(c, out);
	else
		run_pipe(c, out);
	_exit(0);
}

static void *share(size_t size, int fd)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_POPULATE | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* The slots, in a memfd as in a card's memory. */
static unsigned char *make_ring(const struct card *c)
{
	int fd = memfd_create("card", MFD_CLOEXEC);
	unsigned char *ring = NULL;

	if (fd < 0)
		return NULL;
	if (!ftruncate(fd, (off_t)(c->slots * c->frame)))
		ring = share(c->slots * c->frame, fd);
	close(fd);
	return ring;
}

int card_start(struct card *c)
{
	int ends[2];

	c->ring = NULL;
	c->shared = share(sizeof(*c->shared), -1);
	if (c->slots && c->shared)
		c->ring = make_ring(c);
	if (!c->shared || (c->slots && !c->ring) || pipe2(ends, O_CLOEXEC))
		return errno;
	fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES);	/* smaller where that is not allowed */
	c->fd = ends[0];
	c->pid = fork();
	if (!c->pid) {
		close(ends[0]);
		run(c, ends[1]);
	}
	close(ends[1]);
	return c->pid < 0 ? errno : 0;
}

int card_open(struct card *c, const char *device)
{
	c->pid = 0;
	c->shared = NULL;
	c->ring = NULL;
	c->fd = open(device, O_RDWR | O_CLOEXEC);
	if (c->fd < 0)
		return errno;
	if (!c->slots)
		return 0;
	c->ring = mmap(NULL, c->slots * c->frame, PROT_READ, MAP_SHARED, c->fd, 0);
	return c->ring == MAP_FAILED ? errno : 0;
}

void card_stop(struct card *c)
{
	if (c->pid) {
		kill(c->pid, SIGKILL);
		waitpid(c->pid, NULL, 0);
	}
	if (c->ring)
		munmap(c->ring, c->slots * c->frame);
	close(c->fd);
}
