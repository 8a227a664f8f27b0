// SPDX-License-Identifier: MIT
/*
 * guest/fds.c - what happens when there are no file descriptors left.
 */
#include "common.h"

#define MANY 256

static void emfile(void)
{
	gdr_mh_t mh[MANY];
	struct rlimit old;
	struct buffer b;
	int dmabuf = 0, n = 0, rc = 0;
	gdr_t g = open_or_fail();

	expect_is(gdr_get_attribute(g, GDR_ATTR_USING_DMA_BUF_MMAP, &dmabuf), 0);
	if (!dmabuf)
		skip_case("only on dma-buf does a pinned buffer hold a file descriptor");
	make_buffer(g, &b, 64 * KIB);
	old = leave_fds(5);
	while (n < MANY && !(rc = gdr_pin_buffer(g, b.dptr, 4096, 0, 0, &mh[n])))
		n++;
	expect_is(rc, EMFILE);
	expect_is(n, 5);
	/* It is no worse the second time, and what is pinned still works. */
	expect_is(gdr_pin_buffer(g, b.dptr, 4096, 0, 0, &mh[n]), EMFILE);
	check_copies(&b, 3);
	expect_is(gdr_unpin_buffer(g, mh[--n]), 0);
	expect_is(gdr_pin_buffer(g, b.dptr, 4096, 0, 0, &mh[n]), 0);
	n++;
	expect_is(setrlimit(RLIMIT_NOFILE, &old), 0);
	expect_is(gdr_pin_buffer(g, b.dptr, 4096, 0, 0, &mh[n]), 0);
	for (n++; n; n--)
		expect_is(gdr_unpin_buffer(g, mh[n - 1]), 0);
	drop_buffer(g, &b);
	expect_is(gdr_close(g), 0);
}

/* The first open may fail without file descriptors, but the next may not. */
static void open_without_fds(void)
{
	struct rlimit old = leave_fds(0);
	gdr_t g = gdr_open();

	expect_is(setrlimit(RLIMIT_NOFILE, &old), 0);
	if (g)
		expect_is(gdr_close(g), 0);
	g = open_or_fail();
	whole_life(g, 4);
	expect_is(gdr_close(g), 0);
}

/*
 * The core makes file descriptors of its own when it first needs a timer, for
 * example to give memory back. A host that has none left must not pay for it.
 */
static void work_without_fds(void)
{
	const long least = 2000, times = scaled(!on_doubles() ? least : guest_long ? 1000000 : 30000);
	/* On an emulated CPU a round takes a millisecond. */
	const double end = seconds_now() + (guest_long ? 300 : 30);
	gdr_t g = open_or_fail();
	struct rlimit old;
	char backend[32];
	struct buffer b;
	gdr_mh_t mh;
	void *va;

	expect_is(gdr_get_backend(g, backend, sizeof(backend)), 0);
	alloc_buffer(g, &b, 64 * KIB);
	expect_is(gdr_pin_buffer(g, b.dptr, b.size, 0, 0, &b.mh), 0);
	old = leave_fds(0);
	for (long i = 0; i < times && (i < least || seconds_now() < end); i++) {
		int rc = gdr_map(g, b.mh, &va, b.size);

		/* rm needs one for a moment; dma-buf holds its own. */
		if (!rc)
			expect_is(gdr_unmap(g, b.mh, va, b.size), 0);
		else
			expect_is(rc, strcmp(backend, "rm") ? 0 : EMFILE);
		expect_is(gdr_unpin_buffer(g, (gdr_mh_t){ 1 }), EINVAL);
	}
	sleep_us(300000);
	expect_is(setrlimit(RLIMIT_NOFILE, &old), 0);
	expect_is(gdr_unpin_buffer(g, b.mh), 0);
	expect_is(gdr_pin_buffer(g, b.dptr, b.size, 0, 0, &mh), 0);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "out of fds: EMFILE, and back", emfile, 60, 0 },
	{ "gdr_open works after one that had no fds", open_without_fds, 60, 0 },
	{ "work goes on for long with no fds", work_without_fds, 60, 600 },
	{ 0 }
};
