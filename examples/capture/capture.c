// SPDX-License-Identifier: MIT
/*
 * capture - frames of a capture card straight into GPU memory: no copy through memory of
 * the host, no copy engine, no call into the GPU's driver for a frame.
 *
 * A frame lies in one of two places in GPU memory, in turn: while the GPU works on one,
 * the next one arrives in the other. It comes there by one of two ways:
 *	read	read(2) of the card's descriptor, with the mapping as its buffer
 *	copy	gdr_copy_to_mapping from the memory that the card's driver lets one mmap
 *
 * The thread runs with SCHED_FIFO on a CPU of its own, with all memory locked. It counts
 * the frames that came too late, and draws how long each took.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../example.h"
#include "card.h"
#include "histogram.h"

enum { PLACES = 2 };

struct options {
	bool copy;		/* by mmap, not by read(2) */
	const char *device;	/* NULL: the simulated card */
	size_t frame;
	uint32_t frames;
	long period_us;
	uint32_t slots;		/* of the card's memory */
	int cpu;		/* -1: any */
	int priority;		/* of SCHED_FIFO; 0: none */
	const char *picture;	/* NULL: none */
	bool strict;
};

/* All that a run has and counts. */
struct run {
	const struct options *o;
	struct card card;	/* of a device fd, ring, frame and slots alone */
	struct example_memory gpu;
	struct histogram times;
	uint32_t late;
	uint32_t damaged;
	int64_t cpu_ns, wall_ns;
};

static void usage(void)
{
	fprintf(stderr,
		"usage: capture [-m read|copy] [-d DEVICE] [-b BYTES] [-n FRAMES] [-p PERIOD_US]\n"
		"               [-k SLOTS] [-c CPU] [-r PRIORITY] [-o PICTURE.svg] [-x]\n"
		"  -m  read: read(2) into the mapping (the default); copy: from the card's mmap\n"
		"  -d  a device to read frames from; with copy a UIO device. Else a simulated card\n"
		"  -b  4194304   -n  1000   -p  8000   -k  8 slots in the card's memory\n"
		"  -c  a CPU to run on   -r  a priority of SCHED_FIFO, 1 to 99\n"
		"  -x  exit with 1 if a frame was late, too\n");
	exit(1);
}

static long number(const char *text, long low, long high)
{
	char *end;
	long n = strtol(text, &end, 10);

	if (end == text || *end || n < low || n > high) {
		fprintf(stderr, "capture: %s is not a number from %ld to %ld\n", text, low, high);
		usage();
	}
	return n;
}

static void parse(struct options *o, int argc, char **argv)
{
	int c;

	*o = (struct options){ .frame = 4 << 20, .frames = 1000, .period_us = 8000, .slots = 8, .cpu = -1 };
	while ((c = getopt(argc, argv, "m:d:b:n:p:k:c:r:o:x")) != -1) {
		switch (c) {
		case 'm':
			if (strcmp(optarg, "read") && strcmp(optarg, "copy"))
				usage();
			o->copy = !strcmp(optarg, "copy");
			break;
		case 'd': o->device = optarg; break;
		case 'b': o->frame = (size_t)number(optarg, 64, 1 << 30) / 8 * 8; break;
		case 'n': o->frames = (uint32_t)number(optarg, 1, 1 << 30); break;
		case 'p': o->period_us = number(optarg, 1, 10000000); break;
		case 'k': o->slots = (uint32_t)number(optarg, 1, CARD_SLOTS_MAX); break;
		case 'c': o->cpu = (int)number(optarg, 0, CPU_SETSIZE - 1); break;
		case 'r': o->priority = (int)number(optarg, 1, 99); break;
		case 'o': o->picture = optarg; break;
		case 'x': o->strict = true; break;
		default: usage();
		}
	}
	if (optind != argc)
		usage();
}

/* A real card: the way of its driver's read(2), or that of UIO. */
static int open_device(struct run *r)
{
	r->card.fd = open(r->o->device, O_RDWR | O_CLOEXEC);
	if (r->card.fd < 0)
		return errno;
	if (!r->o->copy)
		return 0;
	r->card.ring = mmap(NULL, r->o->slots * r->o->frame, PROT_READ, MAP_SHARED, r->card.fd, 0);
	return r->card.ring == MAP_FAILED ? errno : 0;
}

static void open_source(struct run *r)
{
	r->card.frame = r->o->frame;
	r->card.frames = r->o->frames;
	r->card.period_ns = r->o->period_us * 1000;
	r->card.priority = r->o->priority;
	r->card.slots = r->o->copy ? r->o->slots : 0;
	if (r->o->device)
		gdr(open_device(r), r->o->device);
	else
		gdr(card_start(&r->card), "the simulated card");
}

static void warn(const char *what)
{
	printf("%s: %s; going on without\n", what, strerror(errno));
}

/* The three settings of a real-time thread. None is needed for the data to be right. */
static void be_real_time(const struct options *o)
{
	struct sched_param priority = { .sched_priority = o->priority };
	cpu_set_t set;

	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		warn("mlockall");
	CPU_ZERO(&set);
	if (o->cpu >= 0) {
		CPU_SET(o->cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			warn("sched_setaffinity");
	}
	if (o->priority && sched_setscheduler(0, SCHED_FIFO, &priority))
		warn("SCHED_FIFO");
}

static int read_all(int fd, unsigned char *to, size_t size)
{
	while (size) {
		ssize_t n = read(fd, to, size);

		if (!n)
			return ENODATA;
		if (n < 0 && errno != EINTR)
			return errno;
		if (n > 0) {
			to += n;
			size -= (size_t)n;
		}
	}
	return 0;
}

/* The kernel's stores to the mapping have no fence of their own. */
static void store_fence(void)
{
#if defined(__x86_64__)
	__builtin_ia32_sfence();
#elif defined(__aarch64__)
	__asm__ __volatile__("dmb oshst" ::: "memory");
#else
	__sync_synchronize();
#endif
}

/* When the next frame is there: only a device's descriptor is asked for that. */
static int64_t wait_for_device(const struct run *r)
{
	struct pollfd p = { .fd = r->card.fd, .events = POLLIN };

	while (poll(&p, 1, -1) < 0 && errno == EINTR)
		;
	return card_now();
}

/* Frame i, by read(2), to that place; number is the frame's own and due when it was. */
static int take_by_read(struct run *r, uint32_t i, unsigned char *place, uint32_t *number, int64_t *due)
{
	int err;

	*number = i;
	*due = r->o->device ? wait_for_device(r) : card_due(&r->card, i);
	err = read_all(r->card.fd, place, r->o->frame);
	store_fence();
	return err;
}

/* The same, out of the card's memory. */
static int take_by_copy(struct run *r, uint32_t i, unsigned char *place, uint32_t *number, int64_t *due)
{
	uint32_t slot = i % r->o->slots, notice;
	int64_t there = r->o->device ? wait_for_device(r) : 0;
	int err = read_all(r->card.fd, (unsigned char *)&notice, sizeof(notice));

	if (err)
		return err;
	*number = r->o->device ? i : r->card.shared->number[slot];
	*due = r->o->device ? there : card_due(&r->card, *number);
	err = gdr_copy_to_mapping(r->gpu.mh, place, r->card.ring + slot * r->o->frame, r->o->frame);
	if (!r->o->device)
		atomic_store(&r->card.shared->taken, i + 1);
	return err;
}

/* Whether these words of the frame, as CUDA reads them, are those that the card sent. */
static bool is_whole(uint32_t number, CUdeviceptr place, size_t first, size_t words)
{
	uint64_t got[512];

	for (size_t i = 0; i < words; i += 512) {
		size_t n = words - i < 512 ? words - i : 512;

		cu(cuMemcpyDtoH(got, place + 8 * (first + i), 8 * n), "cuMemcpyDtoH");
		for (size_t k = 0; k < n; k++)
			if (got[k] != card_word(number, first + i + k))
				return false;
	}
	return true;
}

/* Here a program launches its kernels on the frame. This one looks at its ends. */
static void use(struct run *r, uint32_t number, CUdeviceptr place)
{
	size_t words = r->o->frame / 8;

	if (r->o->device)
		return;
	if (!is_whole(number, place, 0, 1) || !is_whole(number, place, words - 1, 1))
		r->damaged++;
}

static int64_t thread_cpu_ns(void)
{
	struct rusage u;

	getrusage(RUSAGE_THREAD, &u);
	return (int64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000 +
	       (int64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000;
}

static void capture(struct run *r)
{
	int64_t cpu = thread_cpu_ns(), start = card_now(), due = 0;
	uint32_t number = 0, i;
	size_t at = 0;
	int err;

	if (!r->o->device)
		card_go(&r->card);
	for (i = 0; i < r->o->frames; i++) {
		int64_t took;

		at = i % PLACES * r->gpu.size / PLACES;
		err = (r->o->copy ? take_by_copy : take_by_read)(r, i, (unsigned char *)r->gpu.cpu + at,
								 &number, &due);
		if (err == ENODATA)
			break;	/* the card has lost frames, and has no more */
		gdr(err, r->o->copy ? "gdr_copy_to_mapping" : "read");
		took = card_now() - due;
		histogram_add(&r->times, took);
		r->late += took > r->card.period_ns;
		use(r, number, r->gpu.dev + at);
	}
	r->cpu_ns = thread_cpu_ns() - cpu;
	r->wall_ns = card_now() - start;
	if (!r->o->device && r->times.n && !is_whole(number, r->gpu.dev + at, 0, r->o->frame / 8))
		r->damaged++;
}

static void draw(const struct run *r)
{
	char title[160];
	FILE *f = fopen(r->o->picture, "w");

	if (!f)
		gdr(errno, r->o->picture);
	snprintf(title, sizeof(title), "%zu frames of %zu bytes every %ld us, by %s: %u late, worst %.0f us",
		 r->times.n, r->o->frame, r->o->period_us, r->o->copy ? "gdr_copy_to_mapping" : "read(2)",
		 r->late, (double)histogram_at(&r->times, 1) / 1e3);
	histogram_svg(&r->times, title, r->card.period_ns, f);
	if (fclose(f))
		gdr(errno, r->o->picture);
}

/* Returns whether all was well. */
static bool report(struct run *r)
{
	uint32_t lost = r->o->device ? 0 : atomic_load(&r->card.shared->lost);
	static const double shares[] = { 0.5, 0.99, 0.999, 1 };

	printf("%zu frames of %zu bytes every %ld us, by %s: %u late, %u lost, %u damaged\n", r->times.n,
	       r->o->frame, r->o->period_us, r->o->copy ? "gdr_copy_to_mapping" : "read(2)", r->late, lost,
	       r->damaged);
	if (!r->times.n)
		return false;
	histogram_sort(&r->times);
	printf("in GPU memory after, us:");
	for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++)
		printf("  %g %% %.0f", 100 * shares[i], (double)histogram_at(&r->times, shares[i]) / 1e3);
	printf("\nCPU: %.1f %% of one; %.2f GB/s\n", 100.0 * (double)r->cpu_ns / (double)r->wall_ns,
	       (double)r->times.n * (double)r->o->frame / (double)r->wall_ns);
	if (r->o->picture)
		draw(r);
	return !lost && !r->damaged && !(r->o->strict && r->late);
}

int main(int argc, char **argv)
{
	struct options o;
	struct run r = { .o = &o };
	bool well;
	gdr_t g;

	parse(&o, argc, argv);
	open_source(&r);	/* forks: before CUDA */
	example_context();
	g = example_open();
	example_map(g, &r.gpu, PLACES * ((o.frame + GPU_PAGE_SIZE - 1) & GPU_PAGE_MASK));
	gdr(histogram_init(&r.times, o.frames), "histogram_init");
	be_real_time(&o);
	capture(&r);
	well = report(&r);
	if (!o.device)
		card_stop(&r.card);
	histogram_free(&r.times);
	example_unmap(g, &r.gpu);
	gdr(gdr_close(g), "gdr_close");
	return !well;
}
