// SPDX-License-Identifier: MIT
/*
 * parts_test - the simulated card of examples/capture, and its histogram, by themselves.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "capture/card.h"
#include "capture/histogram.h"
#include "tap.h"

static struct tap tap;

static void check(bool ok, const char *name)
{
	tap_ok(&tap, ok, "%s", name);
}

static bool read_whole(int fd, void *to, size_t size)
{
	for (size_t n = 0; n < size;) {
		ssize_t got = read(fd, (char *)to + n, size - n);

		if (got <= 0)
			return false;
		n += (size_t)got;
	}
	return true;
}

static bool is_frame(const uint64_t *words, size_t frame, uint32_t number)
{
	for (size_t i = 0; i < frame / 8; i++)
		if (words[i] != card_word(number, i))
			return false;
	return card_number(words[0]) == number;
}

static bool begin(struct card *c)
{
	int64_t before = card_now(), due;

	if (card_start(c))
		return false;
	card_go(c);
	due = card_due(c, 0);
	check(due >= before + c->period_ns && due <= card_now() + c->period_ns, "the first frame is due a period from now");
	check(card_due(c, 3) == due + 3 * c->period_ns && card_tells(c), "and each next one a period later");
	return true;
}

static void stop(struct card *c)
{
	int fd = c->fd;

	card_stop(c);
	check(fcntl(fd, F_GETFD) < 0 && errno == EBADF, "a card that is stopped is closed");
	check(waitpid(-1, NULL, 0) < 0 && errno == ECHILD, "and has no process");
}

/* Frames come in turn, whole, when they are due, and then there are no more. */
static void test_pipe(size_t frame)
{
	struct card c = { .frame = frame, .frames = 3, .period_ns = 1000000 };
	uint64_t *words = malloc(frame);
	bool good = true;
	char more;

	if (!begin(&c))
		exit(1);
	for (uint32_t n = 0; n < c.frames; n++) {
		good &= read_whole(c.fd, words, frame) && is_frame(words, frame, n);
		good &= card_now() >= card_due(&c, n);
	}
	check(good, "frames come whole and in turn, and none before it is due");
	check(read(c.fd, &more, 1) == 0, "then there are no more");
	stop(&c);
	free(words);
}

/* A frame that finds no free slot is lost. */
static void test_lost(void)
{
	struct card c = { .frame = 64, .frames = 4, .period_ns = 1000000, .slots = 2 };
	uint32_t notice[3];

	if (!begin(&c))
		exit(1);
	check(read_whole(c.fd, notice, 8) && notice[0] == 1 && notice[1] == 2 && read(c.fd, notice, 4) == 0,
	      "there are as many notices as slots that nobody takes");
	check(is_frame((uint64_t *)c.ring, 64, 0) && is_frame((uint64_t *)(c.ring + 64), 64, 1), "each slot keeps its frame");
	stop(&c);
}

/* The slots that are taken are filled again, in turn, by later frames. */
static void test_taken(void)
{
	struct card c = { .frame = 64, .frames = 20, .period_ns = 1000000, .slots = 2 };
	uint32_t notice, n = 0, next = 0;
	bool good = true;

	if (!begin(&c))
		exit(1);
	while (read_whole(c.fd, &notice, 4)) {
		const uint64_t *words = (uint64_t *)(c.ring + n++ % 2 * c.frame);
		uint32_t number = card_number(words[0]);

		good &= notice == n && number >= next && number < c.frames && is_frame(words, c.frame, number);
		next = number + 1;
		card_take(&c, n);
	}
	check(good && n >= 2, "the slots are filled in turn, by later frames");
	stop(&c);
}

static void test_device(void)
{
	struct card c = { .frame = 4096, .slots = 0, .pid = 7, .period_ns = 1 };
	struct card none = { .frame = 4096 }, mapped = { .frame = 4096, .slots = 2 }, refuses = { .frame = 4096, .slots = 2 };

	check(card_open(&none, "/none") == ENOENT, "there is no such device");
	check(!card_open(&c, "/dev/zero") && !c.pid && !c.ring && !c.shared, "a device that is read has no slots");
	check(!card_tells(&c) && !card_due(&c, 5), "it does not tell when frames are due");
	check(fcntl(c.fd, F_GETFD) == FD_CLOEXEC, "no program that is started gets it");
	card_go(&c);
	card_take(&c, 1);
	card_stop(&c);
	check(!card_open(&mapped, "/dev/zero") && mapped.ring && !mapped.ring[8191], "one that is mapped has");
	card_stop(&mapped);
	check(card_open(&refuses, "/dev/null") == ENODEV, "one that cannot be mapped is refused");
}

/* The picture of so many times of ns each. */
static char *picture(size_t n, int64_t ns)
{
	static char text[1 << 15];
	struct histogram h;
	FILE *f = fmemopen(text, sizeof(text), "w");

	if (!f || histogram_init(&h, n))
		exit(1);
	for (size_t i = 0; i < n; i++)
		histogram_add(&h, ns);
	histogram_sort(&h);
	histogram_svg(&h, "", 1000000, f);
	fclose(f);
	histogram_free(&h);
	return text;
}

static void test_histogram(void)
{
	static const struct {
		size_t n;
		const char *axis, *above;	/* the axis goes to the first, and not to the second */
	} rows[] = {
		{ 1, ">10</text>", ">100</text>" }, { 9, ">10</text>", ">100</text>" }, { 10, ">10</text>", ">100</text>" },
		{ 11, ">100</text>", ">1000</text>" }, { 101, ">1000</text>", ">10000</text>" },
	};
	struct histogram h;
	char bar[64];

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char *text = picture(rows[i].n, 5000);

		snprintf(bar, sizeof(bar), "<title>%zu</title>", rows[i].n);
		tap_ok(&tap, strstr(text, bar) && strstr(text, rows[i].axis) && !strstr(text, rows[i].above),
		       "the axis of a bar of %zu", rows[i].n);
	}
	/* The bars at the ends have what is past them. */
	check(strstr(picture(1, -5), "<rect x='70.5'") && strstr(picture(1, 0), "<rect x='70.5'"), "a time of none is in the first bar");
	check(strstr(picture(1, 1258), "<rect x='70.5'") && strstr(picture(1, 1260), "<rect x='81.4'"), "the first one ends at 1.259 us");
	check(strstr(picture(1, (int64_t)1 << 50), "<rect x='819.6'"), "a very long one is in the last");
	for (const char *const *part = (const char *const[]){ ">10 us<", ">100 us<", ">1 ms<", ">10 ms<", ">100 ms<", ">1 s<",
			">from when a frame is due until it is in GPU memory<", ">frames<", ">deadline<", "stroke='#333'", NULL }; *part; part++)
		tap_ok(&tap, !!strstr(picture(1, 5000), *part), "the picture has %s", *part);
	if (histogram_init(&h, 3))
		exit(1);
	for (int i = 3; i; i--)
		histogram_add(&h, i);
	histogram_sort(&h);
	check(histogram_at(&h, 0) == 1 && histogram_at(&h, 1.0 / 3) == 1 && histogram_at(&h, 0.34) == 2 && histogram_at(&h, 1) == 3,
	      "the value that a share does not exceed");
	histogram_free(&h);
}

int main(void)
{
	test_pipe(64);
	test_pipe(3 << 20);	/* more than a pipe holds */
	test_lost();
	test_taken();
	test_device();
	test_histogram();
	return tap_done(&tap);
}
