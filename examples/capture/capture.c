// SPDX-License-Identifier: MIT
/*
 * capture - frames of a capture card straight into GPU memory: no copy through memory of
 * the host, no copy engine, no call into the GPU's driver for a frame.
 *
 * Frames lie in places in GPU memory, in turn: while the GPU works on one, the next one
 * arrives in another. A frame comes there by one of three ways:
 *	read	read(2) of the card's descriptor, with the mapping as its buffer
 *	copy	gdr_copy_to_mapping from the memory that the card's driver lets one mmap
 *	dma	the card writes it itself; its driver has imported the memory as a dma-buf
 *
 * The thread runs with SCHED_FIFO on a CPU of its own, with all memory locked. It counts
 * the frames that came too late, and draws how long each took.
 */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <gdrapi_ext.h>

#include "../example.h"
#include "card.h"
#include "histogram.h"

enum way { BY_READ, BY_COPY, BY_DMA };

static const struct {
	const char *option, *name;
} ways[] = {
	[BY_READ] = { "read", "read(2)" },
	[BY_COPY] = { "copy", "gdr_copy_to_mapping" },
	[BY_DMA] = { "dma", "the card's DMA" },
};

struct options {
	enum way way;
	const char *device;	/* NULL: the simulated card */
	size_t frame;
	uint32_t frames;
	long period_us;
	uint32_t slots;		/* of the card's memory */
	int cpu;		/* -1: any */
	int priority;		/* of SCHED_FIFO; 0: none */
	const char *picture;	/* NULL: none */
	bool strict;
	bool all;		/* look at all bytes of all frames */
};

/* All that a run has and counts. */
struct run {
	const struct options *o;
	struct card card;
	bool tells;		/* the card: when frames are due, and what is in them */
	struct example_memory gpu;	/* by DMA dev alone */
	gdr_mem_t mem;		/* by DMA */
	uint32_t places;
	size_t place;		/* bytes of one */
	struct histogram times;
	uint32_t late;
	uint32_t lost;
	uint32_t damaged;
	int64_t cpu_ns, wall_ns;
};

static void usage(void)
{
	fprintf(stderr,
		"usage: capture [-m read|copy|dma] [-d DEVICE] [-b BYTES] [-n FRAMES] [-p PERIOD_US]\n"
		"               [-k SLOTS] [-c CPU] [-r PRIORITY] [-o PICTURE.svg] [-a] [-x]\n"
		"  -m  read: read(2) into the mapping (the default); copy: from the card's mmap;\n"
		"      dma: the card writes into GPU memory (with -d)\n"
		"  -d  a device to read frames from; with copy a UIO device. Else a simulated card\n"
		"  -b  4194304   -n  1000   -p  8000   -k  8 slots in the card's memory, or by DMA\n"
		"  -c  a CPU to run on   -r  a priority of SCHED_FIFO, 1 to 99\n"
		"  -a  look at all bytes of each frame, not at its ends alone\n"
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

static enum way way(const char *option)
{
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++)
		if (!strcmp(option, ways[i].option))
			return (enum way)i;
	usage();
	return BY_READ;
}

static void parse(struct options *o, int argc, char **argv)
{
	int c;

	*o = (struct options){ .frame = 4 << 20, .frames = 1000, .period_us = 8000, .slots = 8, .cpu = -1 };
	while ((c = getopt(argc, argv, "m:d:b:n:p:k:c:r:o:ax")) != -1) {
		switch (c) {
		case 'm': o->way = way(optarg); break;
		case 'd': o->device = optarg; break;
		case 'b': o->frame = (size_t)number(optarg, 64, 1 << 30) / 8 * 8; break;
		case 'n': o->frames = (uint32_t)number(optarg, 1, 1 << 30); break;
		case 'p': o->period_us = number(optarg, 1, 10000000); break;
		case 'k': o->slots = (uint32_t)number(optarg, 1, CARD_SLOTS_MAX); break;
		case 'c': o->cpu = (int)number(optarg, 0, CPU_SETSIZE - 1); break;
		case 'r': o->priority = (int)number(optarg, 1, 99); break;
		case 'o': o->picture = optarg; break;
		case 'a': o->all = true; break;
		case 'x': o->strict = true; break;
		default: usage();
		}
	}
	if (optind != argc || (o->way == BY_DMA && !o->device))
		usage();
}

static void open_source(struct run *r)
{
	r->card.frame = r->o->frame;
	r->card.frames = r->o->frames;
	r->card.period_ns = r->o->period_us * 1000;
	r->card.priority = r->o->priority;
	r->card.slots = r->o->way == BY_COPY ? r->o->slots : 0;
	if (r->o->device)
		gdr(card_open(&r->card, r->o->device), r->o->device);
	else
		gdr(card_start(&r->card), "the simulated card");
	r->tells = card_tells(&r->card);
}

/*
 * GPU memory that the card writes. Its driver imports the dma-buf; by which request
 * differs from card to card.
 */
static void give_to_card(gdr_t g, struct run *r)
{
	struct card_dma dma = { .slots = r->places, .stride = r->place };
	unsigned long dev;

	gdr(gdr_mem_alloc(g, 0, r->places * r->place, 0, &r->mem), "gdr_mem_alloc");
	gdr(gdr_mem_get_device_ptr(g, r->mem, &dev, NULL), "gdr_mem_get_device_ptr");
	gdr(gdr_mem_export_dmabuf(g, r->mem, 0, &dma.fd), "gdr_mem_export_dmabuf");
	gdr(ioctl(r->card.fd, CARD_DMA, &dma) ? errno : 0, "CARD_DMA");
	close(dma.fd);
	r->gpu.dev = dev;
}

static void make_places(gdr_t g, struct run *r)
{
	r->place = (r->o->frame + GPU_PAGE_SIZE - 1) & GPU_PAGE_MASK;
	r->places = r->o->way == BY_DMA ? r->o->slots : 2;
	if (r->o->way == BY_DMA)
		give_to_card(g, r);
	else
		example_map(g, &r->gpu, r->places * r->place);
}

static void free_places(gdr_t g, struct run *r)
{
	if (r->o->way == BY_DMA)
		gdr(gdr_mem_free(g, r->mem), "gdr_mem_free");
	else
		example_unmap(g, &r->gpu);
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

/* A notice that the next slot has a frame: 4 bytes, as the interrupts of a UIO device. */
static int wait_for_slot(const struct run *r)
{
	uint32_t notice;

	return read_all(r->card.fd, (unsigned char *)&notice, sizeof(notice));
}

/* Frame i of those that are not lost, to that offset in GPU memory. Returns 0 or an errno. */
static int take(struct run *r, uint32_t i, size_t at)
{
	unsigned char *place = r->gpu.cpu;
	int err;

	if (r->o->way == BY_READ) {
		err = read_all(r->card.fd, place + at, r->o->frame);
		store_fence();
		return err;
	}
	err = wait_for_slot(r);
	if (err || r->o->way == BY_DMA)
		return err;	/* the card has put it there */
	err = gdr_copy_to_mapping(r->gpu.mh, place + at,
				  r->card.ring + i % r->o->slots * r->o->frame, r->o->frame);
	card_take(&r->card, i + 1);
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

/*
 * Here a program launches its kernels on the frame. This one looks which of the card's
 * frames it is, that number or a later one, and whether it is whole. Returns which.
 */
static uint32_t use(struct run *r, uint32_t number, CUdeviceptr place)
{
	size_t words = r->o->frame / 8, looked = r->o->all ? words : 1;
	uint32_t got;
	uint64_t first;

	cu(cuMemcpyDtoH(&first, place, sizeof(first)), "cuMemcpyDtoH");
	got = card_number(first);
	if (got < number || !is_whole(got, place, 0, looked) || !is_whole(got, place, words - 1, 1)) {
		r->damaged++;
		return number;
	}
	r->lost += got - number;
	return got;
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
	int64_t cpu = thread_cpu_ns(), start = card_now();
	uint32_t next = 0, i;	/* the card's number of the next frame; how many there were */
	size_t at = 0;	/* where the last one lies */
	int err = 0;

	card_go(&r->card);
	for (i = 0; i < r->o->frames; i++) {
		int64_t due = r->tells ? 0 : wait_for_device(r), took;
		size_t to = i % r->places * r->place;

		err = take(r, i, to);
		if (err == ENODATA)
			break;	/* the card has lost frames, and has no more */
		at = to;
		gdr(err, ways[r->o->way].name);
		took = card_now();
		if (r->tells) {
			next = use(r, next, r->gpu.dev + at) + 1;
			due = card_due(&r->card, next - 1);
		}
		histogram_add(&r->times, took - due);
		r->late += took - due > r->card.period_ns;
	}
	r->cpu_ns = thread_cpu_ns() - cpu;
	r->wall_ns = card_now() - start;
	if (!r->tells)
		return;
	if (err == ENODATA)
		r->lost += r->o->frames - next;
	if (i && !is_whole(next - 1, r->gpu.dev + at, 0, r->o->frame / 8))
		r->damaged++;
}

static void draw(const struct run *r)
{
	char title[160];
	FILE *f = fopen(r->o->picture, "w");

	if (!f)
		gdr(errno, r->o->picture);
	snprintf(title, sizeof(title), "%zu frames of %zu bytes every %ld us, by %s: %u late, worst %.0f us",
		 r->times.n, r->o->frame, r->o->period_us, ways[r->o->way].name,
		 r->late, (double)histogram_at(&r->times, 1) / 1e3);
	histogram_svg(&r->times, title, r->card.period_ns, f);
	if (fclose(f))
		gdr(errno, r->o->picture);
}

/* Returns whether all was well. */
static bool report(struct run *r)
{
	static const double shares[] = { 0.5, 0.99, 0.999, 1 };

	printf("%zu frames of %zu bytes every %ld us, by %s: %u late, %u lost, %u damaged\n", r->times.n,
	       r->o->frame, r->o->period_us, ways[r->o->way].name, r->late, r->lost,
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
	return !r->lost && !r->damaged && !(r->o->strict && r->late);
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
	make_places(g, &r);
	gdr(histogram_init(&r.times, o.frames), "histogram_init");
	be_real_time(&o);
	capture(&r);
	well = report(&r);
	card_stop(&r.card);
	histogram_free(&r.times);
	free_places(g, &r);
	gdr(gdr_close(g), "gdr_close");
	return !well;
}
