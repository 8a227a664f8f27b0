// SPDX-License-Identifier: MIT
/*
 * capture_test - what examples/capture says of frames that come late, are lost or are
 * damaged: the whole program, with a card and a clock that do what a table says. Each run is
 * a process of its own.
 */
#define _GNU_SOURCE
#undef main
#undef getrusage
#undef mlockall
#undef sched_setaffinity
#undef sched_setscheduler
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capture/card.h"
#include "tap.h"

enum { MOST = 8, MS = 1000000 };

/* capture.c's, whose names the rule of make changes. */
int capture_main(int argc, char **argv);
int test_getrusage(int who, struct rusage *u);
int test_mlockall(int flags);
int test_setaffinity(pid_t pid, size_t size, const cpu_set_t *set);
int test_setscheduler(pid_t pid, int policy, const struct sched_param *p);

/* What the card gives: frames by their numbers, and the word that is damaged, -1 for none. */
struct given {
	uint32_t number;
	int bad;
};

struct run_of {
	const char *name;
	const char *args;
	int n;			/* frames that come */
	struct given frames[MOST];
	int64_t late_us[MOST];	/* after the frame was due */
	int status;
	const char *says;	/* the first line after the numbers of what was asked for */
};

static struct tap tap;
static const struct run_of *now;
static int frame_of_now, calls_of_clock, cpu_calls;
static uint32_t taken;
static struct card *the_card;

int test_getrusage(int who, struct rusage *u)
{
	/* 5 ms of 20: user and system time count. */
	memset(u, 0, sizeof(*u));
	if (who == RUSAGE_THREAD && cpu_calls++)
		u->ru_utime = (struct timeval){ 0, 3000 }, u->ru_stime = (struct timeval){ 0, 2000 };
	return 0;
}

/* What is set is told; refused: it is not allowed. */
static bool tells_settings, refused;

static int setting(const char *what, int value)
{
	if (tells_settings)
		printf("%s %d\n", what, value);
	errno = EPERM;
	return refused ? -1 : 0;
}

int test_mlockall(int flags)
{
	return setting("memory locked", flags == (MCL_CURRENT | MCL_FUTURE));
}

int test_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
	int cpu = 0;

	if (pid || size != sizeof(*set) || CPU_COUNT(set) != 1)
		return setting("CPUs", CPU_COUNT(set));
	while (!CPU_ISSET(cpu, set))
		cpu++;
	return setting("CPU", cpu);
}

int test_setscheduler(pid_t pid, int policy, const struct sched_param *p)
{
	return setting(policy == SCHED_FIFO && !pid ? "SCHED_FIFO" : "policy", p->sched_priority);
}

/* The first call is the start, the last one 20 ms later; the others are frames. */
int64_t card_now(void)
{
	int call = calls_of_clock++, i = frame_of_now;

	if (!call)
		return 100 * MS;
	if (i == now->n || !the_card->shared)
		return 120 * MS;
	frame_of_now++;
	return card_due(the_card, now->frames[i].number) + now->late_us[i] * 1000;
}

bool card_tells(const struct card *c) { return c->shared; }

int64_t card_due(const struct card *c, uint32_t number)
{
	return 101 * MS + number * c->period_ns;
}

void card_go(struct card *c) { (void)c; }

/* Frame i, as the card has it. */
static void make_frame(const struct card *c, int i, uint64_t *words)
{
	for (size_t k = 0; k < c->frame / 8; k++)
		words[k] = card_word(now->frames[i].number, k) ^ ((int)k == now->frames[i].bad);
}

static uint64_t *slot(const struct card *c, uint32_t i)
{
	return (uint64_t *)(c->ring + i % c->slots * c->frame);
}

/* A slot that is given back has the next frame. */
void card_take(struct card *c, uint32_t slots)
{
	if (slots - 1 + c->slots < (uint32_t)now->n)
		make_frame(c, (int)(slots - 1 + c->slots), slot(c, slots - 1));
	taken = slots == taken + 1 ? slots : 1000;
}

static void give(struct card *c, int out)
{
	uint64_t *words = malloc(c->frame);

	for (uint32_t i = 0; i < (uint32_t)now->n; i++) {
		uint32_t notice = i + 1;

		make_frame(c, (int)i, words);
		if (i < c->slots)
			memcpy(slot(c, i), words, c->frame);
		if (write(out, c->slots ? (void *)&notice : words, c->slots ? sizeof(notice) : c->frame) < 0)
			exit(9);
	}
	free(words);
}

int card_start(struct card *c)
{
	static struct card_shared shared;
	int ends[2];

	the_card = c;
	c->shared = &shared;
	c->pid = 0;
	if (pipe(ends))
		return errno;
	c->fd = ends[0];
	if (c->slots)
		c->ring = malloc(c->slots * c->frame);
	give(c, ends[1]);
	close(ends[1]);
	return 0;
}

int card_open(struct card *c, const char *device)
{
	int err = card_start(c);

	c->shared = NULL;
	return strcmp(device, "card") ? ENODEV : err;
}

void card_stop(struct card *c)
{
	if (c->slots && taken != (uint32_t)now->n)
		exit(8);	/* each slot is given back, in order */
}

/* A frame of 64 bytes has 8 words; one of 4224 has 528, which are read in two parts. */
static const struct run_of runs[] = {
	{ "all is well", "-b 64 -n 3 -p 1000", 3, { { 0, -1 }, { 1, -1 }, { 2, -1 } }, { 100, 999, 1000 }, 0,
	  "3 frames of 64 bytes every 1000 us, by read(2): 0 late, 0 lost, 0 damaged\n"
	  "in GPU memory after, us:  50 % 999  99 % 1000  99.9 % 1000  100 % 1000\n"
	  "CPU: 25.0 % of one; 0.00 GB/s\n" },
	{ "a frame that is late", "-b 64 -n 2 -p 1000", 2, { { 0, -1 }, { 1, -1 } }, { 1, 1001 }, 0,
	  "2 frames of 64 bytes every 1000 us, by read(2): 1 late, 0 lost, 0 damaged\n" },
	{ "with -x it is an error", "-b 64 -n 2 -p 1000 -x", 2, { { 0, -1 }, { 1, -1 } }, { 1, 1001 }, 1,
	  "2 frames of 64 bytes every 1000 us, by read(2): 1 late, 0 lost, 0 damaged\n" },
	{ "-x where none is late", "-b 64 -n 2 -p 1000 -x", 2, { { 0, -1 }, { 1, -1 } }, { 1, 1000 }, 0,
	  "2 frames of 64 bytes every 1000 us, by read(2): 0 late, 0 lost, 0 damaged\n" },
	{ "lost between", "-b 64 -n 5", 3, { { 0, -1 }, { 3, -1 }, { 4, -1 } }, { 1, 1, 1 }, 1,
	  "3 frames of 64 bytes every 8000 us, by read(2): 0 late, 2 lost, 0 damaged\n" },
	{ "lost at the end", "-b 64 -n 5", 2, { { 0, -1 }, { 1, -1 } }, { 1, 1 }, 1,
	  "2 frames of 64 bytes every 8000 us, by read(2): 0 late, 3 lost, 0 damaged\n" },
	{ "lost at the beginning", "-b 64 -n 5 -k 3 -m copy", 4, { { 1, -1 }, { 2, -1 }, { 3, -1 }, { 4, -1 } }, { 1, 1, 1, 8001 }, 1,
	  "4 frames of 64 bytes every 8000 us, by gdr_copy_to_mapping: 1 late, 1 lost, 0 damaged\n" },
	{ "none", "-b 64 -n 2", 0, { { 0, 0 } }, { 0 }, 1,
	  "0 frames of 64 bytes every 8000 us, by read(2): 0 late, 2 lost, 0 damaged\n" },
	{ "a frame whose first word is damaged", "-b 64 -n 3", 3, { { 0, -1 }, { 1, 0 }, { 2, -1 } }, { 1, 1, 1 }, 1,
	  "3 frames of 64 bytes every 8000 us, by read(2): 0 late, 0 lost, 1 damaged\n" },
	{ "its last word", "-b 64 -n 3", 3, { { 0, -1 }, { 1, 7 }, { 2, -1 } }, { 1, 1, 1 }, 1,
	  "3 frames of 64 bytes every 8000 us, by read(2): 0 late, 0 lost, 1 damaged\n" },
	{ "a word between is not looked at", "-b 64 -n 3", 3, { { 0, -1 }, { 1, 3 }, { 2, -1 } }, { 1, 1, 1 }, 0,
	  "3 frames of 64 bytes every 8000 us, by read(2): 0 late, 0 lost, 0 damaged\n" },
	{ "but with -a", "-b 64 -n 3 -a", 3, { { 0, -1 }, { 1, 3 }, { 2, -1 } }, { 1, 1, 1 }, 1,
	  "3 frames of 64 bytes every 8000 us, by read(2): 0 late, 0 lost, 1 damaged\n" },
	{ "and in the last frame", "-b 64 -n 3", 3, { { 0, -1 }, { 1, -1 }, { 2, 3 } }, { 1, 1, 1 }, 1,
	  "3 frames of 64 bytes every 8000 us, by read(2): 0 late, 0 lost, 1 damaged\n" },
	{ "a frame that is read in two parts", "-b 4224 -n 2 -a", 2, { { 0, -1 }, { 1, -1 } }, { 1, 1 }, 0,
	  "2 frames of 4224 bytes every 8000 us, by read(2): 0 late, 0 lost, 0 damaged\n" },
	{ "with a word that is damaged in the second", "-b 4224 -n 2 -a", 2, { { 0, 513 }, { 1, -1 } }, { 1, 1 }, 1,
	  "2 frames of 4224 bytes every 8000 us, by read(2): 0 late, 0 lost, 1 damaged\n" },
	{ "an earlier frame again", "-b 64 -n 2", 2, { { 1, -1 }, { 0, -1 } }, { 1, 1 }, 1,
	  "2 frames of 64 bytes every 8000 us, by read(2): 0 late, 1 lost, 2 damaged\n" },
	{ "bytes that are no whole words", "-b 71 -n 1", 1, { { 0, -1 } }, { 1 }, 0,
	  "1 frames of 64 bytes every 8000 us, by read(2): 0 late, 0 lost, 0 damaged\n" },
	{ "a device that does not tell", "-b 64 -n 3 -d card", 2, { { 0, -1 }, { 7, 0 } }, { 0 }, 0,
	  "2 frames of 64 bytes every 8000 us, by read(2): 0 late, 0 lost, 0 damaged\n"
	  "in GPU memory after, us:  50 % 0  99 % 0  99.9 % 0  100 % 0\n" },
};

static int run_it(const struct run_of *r, const char *more, char *said, size_t size)
{
	static char words[200];
	char *argv[32] = { "capture" };
	int argc = 1, ends[2], status;
	size_t n = 0;
	ssize_t got;

	now = r;
	snprintf(words, sizeof(words), "%s %s", r->args, more);
	for (char *w = strtok(words, " "); w; w = strtok(NULL, " "))
		argv[argc++] = w;
	if (pipe(ends))
		exit(9);
	fflush(stdout);
	if (!fork()) {
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		close(ends[1]);
		exit(capture_main(argc, argv));
	}
	close(ends[1]);
	while (n < size - 1 && (got = read(ends[0], said + n, size - 1 - n)) > 0)
		n += (size_t)got;
	said[n] = 0;
	close(ends[0]);
	wait(&status);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* The text from the first line that is no warning. */
static const char *past_warnings(const char *said)
{
	const char *end;

	while ((end = strstr(said, "; going on without\n")) && end < strchr(said, '\n'))
		said = strchr(said, '\n') + 1;
	return said;
}

static void test_picture(void)
{
	static const struct run_of drawn = { "drawn", "-b 64 -n 4 -p 1000", 4,
		{ { 0, -1 }, { 1, -1 }, { 2, -1 }, { 3, -1 } }, { 0, 1000, 1001, 1000000 }, 0, "" };
	/* Ten bars for a factor of ten: 1 us is bar 0, 1 ms bar 30, 1 s bar 60; 10.857 wide. */
	static const char *const parts[] = {
		"4 frames of 64 bytes every 1000 us, by read(2): 2 late, worst 1000000 us<",
		"<rect x='70.5' y='280.8' width='9.9' height='69.2' fill='#2a6fb0'><title>1</title>",
		"<rect x='396.2' y='211.3' width='9.9' height='138.7' fill='#2a6fb0'><title>2</title>",
		"<rect x='721.9' y='280.8' width='9.9' height='69.2' fill='#2a6fb0'><title>1</title>",
		"<line x1='395.7' y1='350.0' x2='395.7' y2='50.0' stroke='#c0392b'/>",
		"<text x='70.0' y='368' text-anchor='middle'>1 us</text>",
		"<text x='830.0' y='368' text-anchor='middle'>10 s</text>",
		"<text x='64' y='284.8' text-anchor='end'>1</text>",
		"<text x='64' y='54.0' text-anchor='end'>10</text>",
	};
	char said[1 << 14], path[] = "/tmp/capture_test.XXXXXX", more[64];
	int fd = mkstemp(path);
	ssize_t n;

	snprintf(more, sizeof(more), "-o %s", path);
	tap_is(&tap, run_it(&drawn, more, said, sizeof(said)), 0, "the status with a picture");
	n = read(fd, said, sizeof(said) - 1);
	said[n < 0 ? 0 : n] = 0;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		tap_ok(&tap, !!strstr(said, parts[i]), "the picture has %s", parts[i]);
	close(fd);
	unlink(path);
	tap_is(&tap, run_it(&drawn, "-o /dev/full", said, sizeof(said)), 1, "the status of one on a full disk");
	tap_is(&tap, run_it(&drawn, "-o /none/picture.svg", said, sizeof(said)), 1, "the status of one in no folder");
}

/* Options at the ends of their ranges, and past them. */
static void test_options(void)
{
	static const struct {
		const char *args;
		bool ok;
	} rows[] = {
		{ "-b 64", true }, { "-b 63", false }, { "-b 1073741825", false }, { "-n 0", false }, { "-n -1", false },
		{ "-p 0", false }, { "-p 10000000", true }, { "-p 10000001", false }, { "-p 1x", false }, { "-p x", false },
		{ "-k 1", true }, { "-k 0", false }, { "-k 256", true }, { "-k 257", false }, { "-c -1", false }, { "-c 0", true },
		{ "-c 1024", false }, { "-r 0", false }, { "-r 1", true }, { "-r 99", true }, { "-r 100", false }, { "-m read", true },
		{ "-m none", false }, { "-m dma", false }, { "-m copy", true }, { "-q", false }, { "more", false }, { "-d none", false },
	};
	struct run_of one = { "", "-b 64 -n 1", 1, { { 0, -1 } }, { 1 }, 0, "" };
	char said[1 << 12];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		tap_is(&tap, run_it(&one, rows[i].args, said, sizeof(said)), !rows[i].ok, rows[i].args);
}

static void test_settings(void)
{
	static const struct {
		const char *args;
		bool refused;
		const char *says;
	} rows[] = {
		{ "", false, "memory locked 1\n1 frames" },
		{ "-c 3", false, "memory locked 1\nCPU 3\n1 frames" },
		{ "-c 0 -r 50", false, "memory locked 1\nCPU 0\nSCHED_FIFO 50\n1 frames" },
		{ "-r 1", false, "memory locked 1\nSCHED_FIFO 1\n1 frames" },
		{ "-c 1 -r 99", true, "memory locked 1\nmlockall: Operation not permitted; going on without\n"
		  "CPU 1\nsched_setaffinity: Operation not permitted; going on without\n"
		  "SCHED_FIFO 99\nSCHED_FIFO: Operation not permitted; going on without\n1 frames" },
	};
	struct run_of one = { "", "-b 64 -n 1", 1, { { 0, -1 } }, { 1 }, 0, "" };
	char said[1 << 12];

	tells_settings = true;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		refused = rows[i].refused;
		tap_is(&tap, run_it(&one, rows[i].args, said, sizeof(said)), 0, rows[i].args);
		if (!tap_ok(&tap, !strncmp(said, rows[i].says, strlen(rows[i].says)), "what it sets with '%s'", rows[i].args))
			printf("# %s\n", said);
	}
	tells_settings = refused = false;
}

int main(void)
{
	char said[1 << 12];

	for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
		const struct run_of *r = &runs[i];

		tap_is(&tap, run_it(r, "", said, sizeof(said)), r->status, r->name);
		if (!tap_ok(&tap, !strncmp(past_warnings(said), r->says, strlen(r->says)), "what it says of %s", r->name))
			printf("# %s\n", said);
	}
	test_picture();
	test_options();
	test_settings();
	return tap_done(&tap);
}
