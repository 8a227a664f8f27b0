// SPDX-License-Identifier: MIT
/*
 * guest/fds.c - the library's file descriptors: closed on exec, and what
 * happens when there are none left.
 */
#include "common.h"

/* None would survive exec. */
static void each_fd_is_cloexec(void)
{
	DIR *d = opendir("/proc/self/fd");
	int bad = 0;

	expect(d != NULL);
	for (struct dirent *e; (e = readdir(d)); ) {
		int fd = atoi(e->d_name);
		char link[256] = "";

		if (e->d_name[0] == '.' || fd <= STDERR_FILENO)
			continue;
		if (fcntl(fd, F_GETFD) & FD_CLOEXEC)
			continue;
		if (readlinkat(dirfd(d), e->d_name, link, sizeof(link) - 1) < 0)
			link[0] = '\0';
		/* What the driver opens for itself is the driver's. */
		if (!strncmp(link, "/dev/nvidia", 11))
			continue;
		note("fd %d (%s) would survive exec", fd, link);
		bad++;
	}
	closedir(d);
	expect_is(bad, 0);
}

static void close_test_fds(void)
{
	/* The runner of the tests may have left some to us. */
	for (int fd = 3; fd < 256; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
}

#define PINS 16
#define MANY 256

static void cloexec(void)
{
	struct buffer b;
	gdr_mh_t more[PINS];
	gdr_t g;

	close_test_fds();
	g = open_or_fail();
	each_fd_is_cloexec();
	make_buffer(g, &b, 64 * KIB);
	for (int i = 0; i < PINS; i++)
		expect_is(gdr_pin_buffer(g, b.dptr, 4096, 0, 0, &more[i]), 0);
	each_fd_is_cloexec();
	check_copies(&b, 1);
	expect_is(gdr_close(g), 0);
	each_fd_is_cloexec();
}

static void close_returns_them(void)
{
	struct buffer b;
	gdr_t g = open_or_fail();
	long before;

	/* The first one may open what the driver keeps. */
	whole_life(g, 2);
	before = count_fds();
	make_buffer(g, &b, 64 * KIB);
	drop_buffer(g, &b);
	expect_is(count_fds(), before);
	for (int i = 0; i < PINS; i++) {
		gdr_mh_t mh;

		make_buffer(g, &b, 64 * KIB);
		expect_is(gdr_pin_buffer(g, b.dptr, 4096, 0, 0, &mh), 0);
	}
	expect_is(gdr_close(g), 0);
	g = open_or_fail();
	expect(count_fds() <= before);
	expect_is(gdr_close(g), 0);
}

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

/* One or the other; says what it was, if it was neither. */
static void expect_rc(const char *call, long round, int rc, int want, int other)
{
	if (rc != want && rc != other)
		note("%s in round %ld gives %d (%s), want %d or %d", call, round, rc, strerror(rc),
		     want, other);
	expect(rc == want || rc == other);
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
	bool rm;

	expect_is(gdr_get_backend(g, backend, sizeof(backend)), 0);
	rm = !strcmp(backend, "rm");
	alloc_buffer(g, &b, 64 * KIB);
	expect_is(gdr_pin_buffer(g, b.dptr, b.size, 0, 0, &b.mh), 0);
	old = leave_fds(0);
	for (long i = 0; i < times && (i < least || seconds_now() < end); i++) {
		int rc = gdr_map(g, b.mh, &va, b.size);

		/* rm needs one for a moment; dma-buf holds its own. */
		expect_rc("gdr_map", i, rc, 0, rm ? EMFILE : 0);
		if (rc == 0)
			expect_rc("gdr_unmap", i, gdr_unmap(g, b.mh, va, b.size), 0, 0);
		expect_is(gdr_unpin_buffer(g, (gdr_mh_t){ 1 }), EINVAL);
	}
	sleep_us(300000);
	expect_is(setrlimit(RLIMIT_NOFILE, &old), 0);
	expect_is(gdr_unpin_buffer(g, b.mh), 0);
	expect_is(gdr_pin_buffer(g, b.dptr, b.size, 0, 0, &mh), 0);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "every fd is closed on exec", cloexec, 60, 0 },
	{ "unpin and close give every fd back", close_returns_them, 60, 0 },
	{ "out of fds: EMFILE, and back", emfile, 60, 0 },
	{ "gdr_open works after one that had no fds", open_without_fds, 60, 0 },
	{ "work goes on for long with no fds", work_without_fds, 60, 600 },
	{ 0 }
};
