// SPDX-License-Identifier: MIT
/*
 * guest/hooks.c - hosts that hook mmap and munmap, as UCX and libfabric do, and call the library in
 * the hook, or wait there for a thread that calls it.
 */
#include "cuda.h"

#define BYTES (64 * KIB)

static gdr_t keeper;		/* has the memory */
static gdr_t g;
static struct buffer mine;	/* that is mapped or unmapped */
static struct buffer other;
static gdr_cache_t cache;
static unsigned long cached;	/* memory that the cache has not pinned */

static int (*hook)(void);	/* NULL: none; runs once */
static bool by_thread;
static int answer;
static __thread bool hooked;

static void *call_it(void *fn)
{
	answer = (*(int (**)(void))fn)();
	return NULL;
}

/* gdr_close ends the two buffers in any order: mine is the first. */
static void run_hook(const void *unmaps)
{
	int (*fn)(void) = hook;

	if (!fn || !hooked)
		return;
	hook = NULL;
	if (unmaps && unmaps == other.va) {
		struct buffer first = other;

		other = mine;
		mine = first;
	}
	if (by_thread)
		run_thread(0, call_it, &fn);
	else
		call_it(&fn);
}

void *mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off)
{
	static __typeof__(mmap) *next;

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "mmap");
	run_hook(NULL);
	return next(addr, len, prot, flags, fd, off);
}

int munmap(void *addr, size_t len)
{
	static __typeof__(munmap) *next;

	if (!next)
		*(void **)&next = dlsym(RTLD_NEXT, "munmap");
	run_hook(addr);
	return next(addr, len);
}

static int ask(gdr_mh_t mh)
{
	gdr_info_v2_t info;
	int flag;

	return gdr_get_info_v2(g, mh, &info) ?: gdr_get_callback_flag(g, mh, &flag);
}

static int ask_mine(void) { return ask(mine.mh); }
static int ask_other(void) { return ask(other.mh); }
static int copy_other(void) { long word; return gdr_copy_from_mapping(other.mh, &word, other.va, sizeof(word)); }
static int map_mine(void) { void *va; return gdr_map(g, mine.mh, &va, BYTES); }
static int unmap_mine(void) { return gdr_unmap(g, mine.mh, mine.va, BYTES); }
static int unmap_other(void) { return gdr_unmap(g, other.mh, other.va, BYTES); }
static int unpin_mine(void) { return gdr_unpin_buffer(g, mine.mh); }
static int unpin_other(void) { return gdr_unpin_buffer(g, other.mh); }
static int live(void) { whole_life(keeper, 1); return 0; }
static int open_and_close(void) { return gdr_close(open_or_fail()); }
static int close_it(void) { return gdr_close(g); }
static int close_and_ask(void) { return gdr_close(g) ?: ask(other.mh); }
static int flush(void) { return gdr_cache_flush(cache); }
static int close_cache(void) { return gdr_cache_close(cache); }
static int set_ids(void) { return setresuid(-1, -1, -1); }	/* which waits for each thread */

static int pin_again(void)
{
	gdr_mh_t mh;

	return gdr_pin_buffer(g, mine.dptr, BYTES, 0, 0, &mh) ?: gdr_unpin_buffer(g, mh);
}

static int get(void)
{
	gdr_mh_t mh;
	void *va;

	return gdr_cache_get(cache, cached, BYTES, &mh, &va) ?: gdr_cache_put(cache, mh);
}

static const struct way {
	const char *name;
	int (*call)(void);
} ways[] = {
	{ "gdr_get_info of the buffer", ask_mine }, { "gdr_get_info of another", ask_other },
	{ "a copy through another", copy_other }, { "gdr_map", map_mine },
	{ "gdr_unmap", unmap_mine }, { "gdr_unmap of another", unmap_other },
	{ "gdr_unpin_buffer", unpin_mine }, { "gdr_unpin_buffer of another", unpin_other },
	{ "gdr_pin_buffer", pin_again }, { "a life on another gdr_t", live },
	{ "gdr_open and gdr_close", open_and_close }, { "gdr_close", close_it },
	{ "gdr_close, and gdr_get_info", close_and_ask }, { "gdr_cache_get", get },
	{ "gdr_cache_flush", flush }, { "gdr_cache_close", close_cache },
	{ "setresuid", set_ids },
};

/*
 * What the call answers with each way in its hook, and what the way answers, in the order of ways: I is
 * EINVAL, A EAGAIN, a point 0.
 */
static const struct place {
	const char *name;
	int (*call)(void);
	bool mapped;	/* the buffer is, before */
	const char *answers, *in_hook;
} places[] = {
	{ "gdr_map", map_mine, false, "......I....II....",
				      "...AI.......I...." },
	{ "gdr_unmap", unmap_mine, true, ".................",
					 "...AI.......I...." },
	{ "gdr_unpin_buffer", unpin_mine, true, ".................",
						"I..II.I.....I...." },
	{ "gdr_close", close_it, true, ".................",
				       "I..II.I.I..III..." },
	{ "gdr_cache_get", get, true, "...........II..I.",
				      "...A........I...." },
	{ "gdr_cache_flush", flush, true, ".................",
					  "...A........I...." },
};

static void pin(struct buffer *b, bool map)
{
	void *va = NULL;

	expect_is(gdr_pin_buffer(g, b->dptr, BYTES, 0, 0, &b->mh), 0);
	if (map)
		expect_is(gdr_map(g, b->mh, &va, BYTES), 0);
	b->va = va;
}

static void expect_answer(int got, char want, const char *what, const struct place *place, const struct way *way)
{
	int rc = want == 'I' ? EINVAL : want == 'A' ? EAGAIN : 0;

	if (got != rc)
		note("%s, with %s in its hook: %s answers %d, want %d", place->name, way->name, what, got, rc);
	expect(got == rc);
}

static void try_way(const struct place *place, size_t i)
{
	const struct way *way = &ways[i];
	bool closes = place->call == close_it || way->call == close_it || way->call == close_and_ask;
	long fds = count_fds();
	int rc;

	g = open_or_fail();
	pin(&mine, place->mapped);
	pin(&other, true);
	expect_is(gdr_cache_open(g, 64 * MIB, 0, &cache), 0);
	if (place->call == flush)
		expect_is(get(), 0);
	hooked = true;
	hook = way->call;
	rc = place->call();
	hooked = false;
	expect(!hook);
	expect_answer(rc, place->answers[i], place->name, place, way);
	expect_answer(answer, place->in_hook[i], way->name, place, way);
	expect_is(gdr_close(g), closes ? EINVAL : 0);
	expect(!is_shared(other.va) && (!place->mapped || !is_shared(mine.va)));
	expect_is(count_fds(), fds);
}

static void call_in_hooks(void *thread)
{
	struct buffer more;

	by_thread = thread;
	keeper = open_with_context();
	alloc_buffer(keeper, &mine, BYTES);
	alloc_buffer(keeper, &other, BYTES);
	alloc_buffer(keeper, &more, BYTES);
	cached = more.dptr;
	whole_life(keeper, 0);	/* what the first pin opens stays open */
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++)
		for (size_t j = 0; j < sizeof(ways) / sizeof(ways[0]); j++)
			try_way(&places[i], j);
	whole_life(keeper, 2);
}

static int open_refused(void)
{
	errno = 0;
	expect(!gdr_open());
	return errno;
}

static void first_open(void)
{
	hooked = true;
	hook = open_refused;
	g = open_or_fail();
	expect(!hook);
	expect_is(answer, EDEADLK);
	hooked = false;
	whole_life(g, 0);
	expect_is(gdr_close(g), 0);
}

const struct guest_case cases[] = {
	{ "a hook of mmap and munmap calls the library", NULL, 60, 0, call_in_hooks, (void *)false },
	{ "it waits for a thread that does", NULL, 60, 0, call_in_hooks, (void *)true },
	{ "a gdr_open in a hook of the first gdr_open", first_open, 30, 0 },
	{ 0 }
};
