// SPDX-License-Identifier: MIT
/*
 * hear_test.c - capi/guest/hear.c and heard.c, on a stand-in for libcuda: a slot of ioctl, and requests
 * that go through it to a stand-in for the kernel.
 *
 * What must hold: what is heard is true, in doubt it is unheard, each request arrives unchanged, and a
 * tool's function in the slot changes neither. Where libcuda's slot lies finds capi/guest (slot_test.go).
 */
#define _GNU_SOURCE
#include "guest/hear.h"
#include "guest/heard.h"
#include "guest/log.h"

#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*ioctl_fn)(int fd, unsigned long request, ...);

#define UNITS 8			/* of addresses, in a picture */
#define FORKS 50
#define UNIT 0x200000ull
#define BASE 0x7f0000000000ull
#define CLIENT 0xc1d00001u
#define DEVICE 0x5c000001u
#define RM(nr, size) _IOC(_IOC_READ | _IOC_WRITE, 'F', nr, size)

void gdr_log(int level, const char *fmt, ...)
{
	(void)level;
	(void)fmt;
}

static struct tap tap;
static const unsigned int all_layouts[] = {
	GDR_HEAR_535, GDR_HEAR_535 | GDR_HEAR_550, GDR_HEAR_535 | GDR_HEAR_550 | GDR_HEAR_590,
};
static unsigned int layout;	/* of the driver that the kernel stands for */

static bool saw_wrong;

/* What the kernel does with a thread's next request. */
static _Thread_local struct answer {
	uint32_t status;
	int error;		/* errno, if the call fails */
	const char *meanwhile;	/* steps that another thread makes */
	void (*then)(void);
} answer;

static _Atomic long arrived;	/* requests */
static uint32_t class_answer = 0x503b, class_status;

static uint32_t new_client = CLIENT;

static void run(const char *steps);
static const char *picture(void);

static void *run_on(void *steps)
{
	run(steps);
	return NULL;
}

static size_t list_bytes(void)
{
	return 36 * (layout & GDR_HEAR_550 ? 256 : 32);
}

/* Where UVM writes a request's status: by NVIDIA's header of each driver. */
static size_t status_of(unsigned long request)
{
	switch (request) {
	case 33:
		return layout & GDR_HEAR_550 ? 9260 : 1196;
	case 34:
		return layout & GDR_HEAR_590 ? 8 : 16;
	case 30: case 65: case 66: case 74:
		return 32;
	case 68:
		return layout & GDR_HEAR_550 ? 9240 : 1176;
	case 78:
		return 52;
	}
	return 16;
}

static int kernel(int fd, unsigned long request, ...)
{
	struct answer now = answer;
	pthread_t other;
	va_list ap;
	char *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	answer = (struct answer){ 0 };
	arrived++;
	if (fd == -1) {
		errno = EBADF;
		return -1;
	}
	if (request == RM(0x2a, 32)) {	/* GET_HANDLE_INFO */
		uint64_t class = class_answer;

		memcpy(*(char **)(arg + 16) + 8, &class, sizeof(class));
		memcpy(arg + 28, &class_status, sizeof(class_status));
		return 0;
	}
	if (now.meanwhile && (pthread_create(&other, NULL, run_on, (void *)now.meanwhile) || pthread_join(other, NULL)))
		exit(2);
	if (now.then)
		now.then();
	if (_IOC_TYPE(request) != 'F')
		memcpy(arg + status_of(request), &now.status, sizeof(now.status));
	errno = now.error ? now.error : 7;
	return now.error ? -1 : 0;
}

/* A stand-in whose slot is at the start of a page. */
static _Atomic(ioctl_fn) *slot;
static struct gdr_slot where;

static void load(ioctl_fn first, bool read_only)
{
	size_t page = sysconf(_SC_PAGESIZE);

	slot = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (slot == MAP_FAILED)
		exit(2);
	atomic_store(slot, first);
	if (read_only && mprotect((void *)slot, page, PROT_READ))
		exit(2);
	where = (struct gdr_slot){ .at = (uintptr_t)slot, .low = 0x1000, .high = 0x2000, .read_only = read_only };
}

static int ask(unsigned long request, void *arg)
{
	return atomic_load(slot)(3, request, arg);
}

static void put32(char *arg, size_t at, uint32_t v) { memcpy(arg + at, &v, sizeof(v)); }
static void put64(char *arg, size_t at, uint64_t v) { memcpy(arg + at, &v, sizeof(v)); }

/* A request of UVM's on some units. */
static int uvm(unsigned long request, unsigned int from, unsigned int to, size_t uuid, unsigned int gpu)
{
	char arg[9264] = "";

	put64(arg, 0, BASE + from * UNIT);
	if (request != 34 || !(layout & GDR_HEAR_590))
		put64(arg, 8, (to - from) * UNIT);
	if (uuid)
		memset(arg + uuid, 'u' + (int)gpu, 16);
	return ask(request, arg);
}

/* A GPU, or its address space, goes. */
static int lose(unsigned long request, unsigned int gpu)
{
	char arg[40] = "";

	memset(arg, 'u' + (int)gpu, 16);
	return ask(request, arg);
}

static int map(unsigned int from, unsigned int to, char object, unsigned int offset, unsigned int gpu, uint64_t count)
{
	size_t list = 24 + list_bytes();
	char arg[9264] = "";

	put64(arg, 0, BASE + from * UNIT);
	put64(arg, 8, (to - from) * UNIT);
	put64(arg, 16, offset * UNIT);
	memset(arg + 24, 'u' + (int)gpu, 16);
	put64(arg, list, count);
	put32(arg, list + 8, 5);
	put32(arg, list + 12, new_client);
	put32(arg, list + 16, object);
	return ask(33, arg);
}

static int rm_free(uint32_t parent, uint32_t object)
{
	char arg[16];

	put32(arg, 0, new_client);
	put32(arg, 4, parent);
	put32(arg, 8, object);
	put32(arg, 12, 0);
	return ask(RM(0x29, 16), arg);
}

static int old_free(uint32_t object)
{
	char arg[184] = "";

	put32(arg, 0, new_client);
	put32(arg, 4, DEVICE);
	put32(arg, 8, 3);
	put32(arg, 44, object);
	return ask(RM(0x4a, 184), arg);
}

static int alloc(uint32_t class, uint32_t object)
{
	char arg[48] = "";

	put32(arg, 0, new_client);
	put32(arg, 4, DEVICE);
	put32(arg, 8, object);
	put32(arg, 12, class);
	return ask(RM(0x2b, 48), arg);
}

/*
 * One step: a word, two units, an object's letter, and what else the word takes, each of one
 * character. A step that ends in ! fails in the kernel, one in { STEPS } has others' steps meanwhile.
 */
static void step(const char *s)
{
	unsigned int from = 0, to = 0, gpu = 0, offset = 0;
	const char *inner = strchr(s, '{');
	char word[16], object = 0;

	if (sscanf(s, " %15s %u %u %c %u %u", word, &from, &to, &object, &gpu, &offset) < 1)
		return;
	answer = (struct answer){ .status = strchr(s, '!') != NULL, .meanwhile = inner ? inner + 1 : NULL };
	if (!strcmp(word, "map"))
		map(from, to, object, offset, gpu, 1);
	else if (!strcmp(word, "maps"))	/* for two GPUs at once */
		map(from, to, object, offset, gpu, 2);
	else if (!strcmp(word, "free"))
		uvm(34, from, to, 0, 0);
	else if (!strcmp(word, "unmap"))
		uvm(66, from, to, 16, object - '0');
	else if (!strcmp(word, "sparse"))
		uvm(74, from, to, 16, 0);
	else if (!strcmp(word, "range"))
		uvm(73, from, to, 0, 0);
	else if (!strcmp(word, "region"))
		uvm(65, from, to, 16, 0);
	else if (!strcmp(word, "pool"))
		uvm(68, from, to, 0, 0);
	else if (!strcmp(word, "p2p"))
		uvm(78, from, to, 0, 0);
	else if (!strcmp(word, "gpu"))	/* its number in the place of units */
		lose(38, from);
	else if (!strcmp(word, "space"))
		lose(26, from);
	else if (!strcmp(word, "peers"))
		uvm(30, 0, 0, 0, 0);
	else if (!strcmp(word, "object"))	/* its letter in the place of units */
		rm_free(DEVICE, (unsigned char)strchr(s, '=')[1]);
	else if (!strcmp(word, "memory"))
		alloc(0x40, (unsigned char)strchr(s, '=')[1]);
	else if (!strcmp(word, "old"))
		old_free((unsigned char)strchr(s, '=')[1]);
	else if (!strcmp(word, "child"))
		rm_free(new_client, 0x77);
	else if (!strcmp(word, "client"))
		rm_free(new_client, new_client);
	else if (!strcmp(word, "anew"))
		new_client++;
	else if (!strcmp(word, "back"))
		new_client--;
	else if (!strcmp(word, "is"))	/* what the first two units are meanwhile */
		saw_wrong = strncmp(picture(), strstr(s, "is ") + 3, 2);
	else
		exit(2);
	answer = (struct answer){ 0 };
}

static void run(const char *steps)
{
	while (*steps && *steps != '}') {
		const char *end = steps;
		char one[128];
		int depth = 0;

		for (; *end && (depth || (*end != ';' && *end != '}')); end++)
			depth += (*end == '{') - (*end == '}');
		snprintf(one, sizeof(one), "%.*s", (int)(end - steps), steps);
		step(one);
		steps = end + (*end == ';');
	}
}

/* The units: an object's letter, . gone, - unheard. */
static const char *picture(void)
{
	static char units[UNITS + 1];
	struct gdr_heard e[2];

	for (int i = 0; i < UNITS; i++) {
		uint64_t at = BASE + i * UNIT;
		struct gdr_hearing h = gdr_heard_at(at, at + UNIT, e, 2);

		units[i] = h.answer == GDR_GONE ? '.' : '-';
		if (h.answer == GDR_HEARD && h.entries == 1 && e[0].base <= at && e[0].end >= at + UNIT && e[0].client == new_client)
			units[i] = (char)e[0].object;
	}
	return units;
}

#define NEW (GDR_HEAR_590)	/* a row for drivers from 590 on alone */
#define OLD (1u << 31)		/* a row for drivers before */

static const struct row {
	const char *what, *steps, *want;
	unsigned int only;
} rows[] = {
	{ "a map", "range 0 4; map 0 4 a", "aaaa----", 0 },
	{ "a peer's map changes nothing, nor does its end", "map 0 4 a; map 0 4 a 1; unmap 0 4 1", "aaaa----", 0 },
	{ "the end of the owner's does, if the peer's stays, too", "map 0 4 a; map 0 4 a 1; unmap 0 4 0", "--------", 0 },
	{ "a peer's map of another object changes nothing, nor does its end", "memory =a; map 0 2 a; map 0 8 f 1; unmap 0 8 1", "aa------", 0 },
	{ "the owner's end does", "memory =a; map 0 2 a; map 0 8 f 1; unmap 0 2 0", "--------", 0 },
	{ "for the owner's GPU it replaces", "memory =a; map 0 2 a; map 0 8 f 0", "ffffffff", 0 },
	{ "memory replaces, for whichever GPU", "memory =a; map 0 2 a; memory =b; map 1 3 b 1", "-bb-----", 0 },
	{ "memory that was freed is none that is known", "memory =a; object =a; map 0 2 a; map 0 8 f 1", "ffffffff", 0 },
	{ "a free", "range 0 4; map 0 4 a; free 0 4", "....----", 0 },
	{ "a free of several maps", "range 0 6; map 0 2 a; map 2 3 b; map 4 6 c; free 0 6", "......--", 0 },
	{ "a free that failed", "range 0 4; map 0 4 a; free 0 4 !", "--------", 0 },
	{ "a map that failed", "range 0 4; map 0 4 a; free 0 4; range 0 4; map 0 4 b !", "--------", 0 },
	{ "a peer's map that failed", "map 0 4 a; map 0 4 a 1 !", "--------", 0 },
	{ "a map for two GPUs at once", "map 0 4 a; maps 0 2 b", "--------", 0 },
	{ "memory of before, freed", "map 4 5 a; free 0 4", "....a---", OLD },
	{ "what is gone beside a map", "range 0 8; free 0 8; range 2 4; map 2 4 a", "..aa....", 0 },
	{ "another object is freed", "map 0 2 a; map 2 4 b; object =a", "--bb----", 0 },
	{ "a free of 535's kind", "map 0 2 a; map 2 4 b; old =a", "--bb----", 0 },
	{ "sparse", "map 0 4 a; sparse 1 2", "--------", 0 },
	{ "a GPU goes", "map 0 2 a; map 2 4 b 1; range 4 6; free 4 6; gpu 0", "--bb..--", 0 },
	{ "a GPU's address space goes", "map 0 2 a; map 2 4 b 1; space 1", "aa------", 0 },
	{ "peer access goes", "map 0 4 a; peers", "--------", 0 },
	{ "a client goes", "map 0 4 a; client", "--------", 0 },
	{ "of another client the object's number is another object", "map 0 4 a; anew; object =a; back", "aaaa----", 0 },
	/* 34 without a length */
	{ "a free without a length, of a range that was not heard", "map 0 4 a; free 0 4", "--------", NEW },
	{ "it drops what lies before the next range", "map 0 2 a; range 3 5; map 3 5 b; free 0 9", "---bb---", NEW },
	{ "a free of a semaphore pool", "pool 0 2; range 2 4; map 2 4 a; free 0 9", "..aa----", NEW },
	{ "of another region", "region 0 2; p2p 4 6; range 2 4; map 2 4 a; free 0 9; free 4 9", "..aa..--", NEW },
	{ "a range that was not made", "range 0 2; map 0 2 a; map 2 4 b; range 0 4 !; free 0 9", "..bb----", NEW },
	/* what others do meanwhile */
	{ "gone until the map is there", "range 0 2; free 0 2; range 0 2; map 0 2 a { is .. }", "aa------", 0 },
	{ "heard until the range's end is asked for", "range 0 2; map 0 2 a; free 0 2 { is .. }", "..------", 0 },
	{ "a map and a free of its range", "range 0 2; map 0 2 a { free 0 2 }", "--------", 0 },
	{ "a map and a free of its object", "map 0 2 a { object =a }", "--------", 0 },
	{ "a map, and other memory meanwhile", "map 0 2 a { map 4 6 b; range 6 8; free 6 8; object =c }", "aa--bb..", 0 },
	{ "a peer's map and a free", "range 0 2; map 0 2 a; map 0 2 a 1 { free 0 2 }", "--------", 0 },
};

static void start(unsigned int of_driver)
{
	layout = of_driver;
	new_client = CLIENT;
	class_answer = 0x503b;
	class_status = 0;
	saw_wrong = false;
	if (!gdr_hear(&where, of_driver))
		exit(2);
	gdr_heard_reset();
}

static void test_rows(unsigned int of_driver)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct row *r = &rows[i];

		if (r->only == NEW ? !(of_driver & GDR_HEAR_590) : r->only == OLD && of_driver & GDR_HEAR_590)
			continue;
		start(of_driver);
		run(r->steps);
		tap_ok(&tap, !strcmp(picture(), r->want) && !saw_wrong, "layout %u: %s: %s, want %s", of_driver, r->what,
		       picture(), r->want);
	}
}

static struct gdr_heard heard_at(unsigned int unit)
{
	struct gdr_heard e = { 0 };

	if (gdr_heard_at(BASE + unit * UNIT, BASE + (unit + 1) * UNIT, &e, 1).answer != GDR_HEARD)
		e.number = 0;
	return e;
}

/* What an entry says, and that no other one ever has its number, whatever is the same. */
static void test_entries(void)
{
	struct gdr_heard e, was = { 0 };
	bool fresh = true;
	uint64_t ends;

	start(all_layouts[1]);
	map(2, 4, 'e', 3, 1, 1);
	e = heard_at(2);
	tap_ok(&tap, e.base == BASE + 2 * UNIT && e.end == BASE + 4 * UNIT && e.offset == 3 * UNIT && e.object == 'e' &&
	       e.client == CLIENT && e.control == 5 && !e.parent, "an entry says what the request said");
	e.parent = DEVICE;
	gdr_heard_keep(&e);
	tap_ok(&tap, heard_at(3).parent == DEVICE, "what was learned of it is kept");
	for (int i = 0; i < 100; i++) {
		run("range 0 2; map 0 2 a");
		e = heard_at(0);
		fresh = fresh && e.number && e.number != was.number && !e.parent;
		was = e;
		run("free 0 2; object =a");
	}
	tap_ok(&tap, fresh, "the same memory, made a hundred times, has a hundred numbers");
	was.parent = DEVICE;
	run("map 0 2 a");
	gdr_heard_keep(&was);
	tap_ok(&tap, !heard_at(0).parent, "what was learned of memory that is gone is not kept");
	was = heard_at(0);
	gdr_heard_keep(&was);
	tap_ok(&tap, !strcmp(picture(), "--ee----"), "an entry of which nothing is known is dropped: %s", picture());

	/* What was learned otherwise. */
	was.base = BASE + 6 * UNIT;
	was.end = BASE + 8 * UNIT;
	was.gpu = 0x1700;
	ends = gdr_heard_at(BASE, BASE + UNIT, &e, 1).ends;
	run("object =x");
	gdr_heard_learn(&was, ends);
	ends = gdr_heard_at(BASE, BASE + UNIT, &e, 1).ends;
	tap_ok(&tap, !heard_at(6).number, "what was learned before something ended is not kept");
	gdr_heard_learn(&was, ends);
	tap_ok(&tap, heard_at(6).gpu == 0x1700 && heard_at(6).number != was.number, "what was learned is kept");
	was.base = BASE + 3 * UNIT;
	gdr_heard_learn(&was, ends);
	tap_ok(&tap, heard_at(3).object == 'e', "but not over what is heard");
}

static uint32_t clients_now(void)
{
	struct gdr_heard e;

	return gdr_heard_at(BASE, BASE + UNIT, &e, 1).clients;
}

/* A direct child of a client is a device, or something that comes and goes. */
static void test_children(void)
{
	static const struct {
		const char *what;
		uint32_t class, status;
		bool all;
	} child[] = {
		{ "a peer's", 0x503b, 0, false }, { "a device", 0x80, 0, true }, { "unknown", 0x503b, 0x57, true },
	};

	for (size_t i = 0; i < sizeof(child) / sizeof(child[0]); i++) {
		uint32_t clients;

		start(all_layouts[1]);
		run("map 0 4 a");
		clients = clients_now();
		class_answer = child[i].class;
		class_status = child[i].status;
		run("child");
		tap_ok(&tap, !strcmp(picture(), child[i].all ? "--------" : "aaaa----") && (clients_now() != clients) == child[i].all,
		       "a child of the client is freed, %s: %s", child[i].what, picture());
	}
	start(all_layouts[1]);
	{
		uint32_t clients = clients_now();

		alloc(0x40, 'm');
		tap_ok(&tap, clients_now() == clients, "an object is made");
		alloc(0x41, 0);
		tap_ok(&tap, clients_now() != clients, "a client is made");
	}
}

/* Each request arrives as it was made, and its answer goes back. */
static void test_through(void)
{
	char arg[64] = "abc", same[64] = "abc";
	long before = arrived;

	start(all_layouts[1]);
	before = arrived;
	answer = (struct answer){ .error = EAGAIN };
	errno = 0;
	tap_ok(&tap, uvm(73, 0, 2, 0, 0) == -1 && errno == EAGAIN, "a request that fails: its errno");
	answer = (struct answer){ .error = EINTR };
	errno = 0;
	tap_ok(&tap, map(0, 2, 'a', 0, 0, 1) == -1 && errno == EINTR && !strcmp(picture(), "--------"), "a map that fails: its errno");
	errno = 0;
	tap_ok(&tap, !uvm(74, 0, 2, 16, 0) && errno == 7, "a request that is told: errno is the kernel's");
	tap_ok(&tap, !ask(RM(0x2a, 32 + 4), arg) && !memcmp(arg, same, sizeof(arg)) && errno == 7, "a request that tells nothing");
	tap_ok(&tap, atomic_load(slot)(-1, 5, arg) == -1 && errno == EBADF, "a descriptor that is none");
	tap_is(&tap, arrived - before, 5, "requests that arrived");
}

/* The signature of cuMemGetHandleForAddressRange. Its request names an object. */
static _Thread_local sigjmp_buf jump;
static _Thread_local bool leaves;
static _Thread_local unsigned int export_bytes;

static int export(void *handle, unsigned long long addr, size_t size, int type, unsigned long long flags)
{
	char arg[2608] = "";
	size_t objects = export_bytes == 2600 ? 32 : 36;

	put32(arg, 4, CLIENT);
	put32(arg, 12, 1);
	put32(arg, objects, (uint32_t)addr);
	put64(arg, (objects + 4 * 128 + 7) & ~7ul, addr * 3);
	if (export_bytes)
		ask(RM(217, export_bytes), arg);
	if (leaves)
		siglongjmp(jump, 1);
	*(int *)handle = 9;
	return size == 4096 && type == 1 && !flags ? 0 : 1;
}

static bool sees(uint64_t addr, unsigned int bytes, uint32_t object)
{
	struct gdr_watch w;

	export_bytes = bytes;
	return !gdr_watch_export((uintptr_t)export, addr, 4096, &w) && !w.result && w.fd == 9 && w.requests == !!bytes &&
	       w.size == bytes && w.object == object && (!object || (w.client == CLIENT && w.offset == addr * 3));
}

static void leave(void)
{
	siglongjmp(jump, 1);
}

/* A handler of the host's leaves a map by siglongjmp, many times. */
static void test_left(void)
{
	start(all_layouts[1]);
	for (volatile int i = 0; i < 200; i++) {
		if (sigsetjmp(jump, 0))
			continue;
		answer = (struct answer){ .then = leave };
		map(4, 6, 'b', 0, 0, 1);
		exit(2);
	}
	run("map 0 2 a; map 2 4 c { map 6 8 d }");
	tap_ok(&tap, !strcmp(picture(), "aacc--dd"), "a thread leaves maps: they are unheard, and others are heard: %s", picture());
}

static void test_watch(void)
{
	struct gdr_watch w;

	start(all_layouts[1]);
	tap_ok(&tap, sees(0x71, 2608, 0x71) && sees(0x72, 2600, 0x72), "an export's request is seen, of both sizes");
	tap_ok(&tap, sees(0x73, 2604, 0), "of another size it is seen, and names nothing");
	tap_ok(&tap, sees(0x74, 0, 0), "an export without a request");
	leaves = true;
	if (!sigsetjmp(jump, 0)) {
		gdr_watch_export((uintptr_t)export, 1, 4096, &w);
		exit(2);
	}
	leaves = false;
	/* Its own requests are noted in the place that it left, and not where the watch was. */
	memset(&w, 0x5a, sizeof(w));
	export_bytes = 2608;
	{
		int fd;

		export(&fd, 0x99, 4096, 1, 0);
	}
	tap_ok(&tap, w.object == 0x5a5a5a5a, "a thread that left an export by siglongjmp asks by itself");
	tap_ok(&tap, sees(0x75, 2608, 0x75), "it watches again");
}

/* Tools: functions that others put into the slot. */
static ioctl_fn found;
static _Atomic long passed;

static int tool(int fd, unsigned long request, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (++passed > 100000)
		_exit(3);	/* it calls itself without end */
	return found(fd, request, arg);
}

static int deaf_tool(int fd, unsigned long request, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	return kernel(fd, request, arg);
}

static bool hears(void)
{
	run("range 0 2; map 0 2 a");
	return gdr_hears() && !strcmp(picture(), "aa------");
}

static bool a_tool_after(void)
{
	load(kernel, false);
	start(all_layouts[1]);
	found = atomic_load(slot);
	atomic_store(slot, tool);
	if (!hears() || !sees(0x71, 2608, 0x71))
		return false;
	atomic_store(slot, found);
	return hears();
}

static bool a_deaf_tool_after(void)
{
	struct gdr_watch w;

	load(kernel, false);
	start(all_layouts[1]);
	if (!hears())
		return false;
	atomic_store(slot, deaf_tool);
	uvm(34, 0, 2, 0, 0);
	if (gdr_hears() || gdr_heard_listens() || gdr_watch_export((uintptr_t)export, 1, 4096, &w) != ENOTSUP)
		return false;
	found = atomic_load(slot);
	atomic_store(slot, kernel);
	return !gdr_hears() && !strcmp(picture(), "--------");
}

/* The loader binds the slot after our function was put there, for a call that began before. */
static bool bound_late(void)
{
	load((ioctl_fn)0x1800, false);	/* in the library: not bound */
	if (!gdr_hear(&where, all_layouts[1]) || atomic_load(slot) == (ioctl_fn)0x1800)
		return false;
	atomic_store(slot, ioctl);
	return gdr_hears() && atomic_load(slot) != ioctl && gdr_heard_listens();
}

static bool is_read_only(void)
{
	load(kernel, true);
	start(all_layouts[1]);
	return hears() && sees(0x71, 2608, 0x71);
}

static bool is_unknown(void)
{
	load(kernel, false);
	layout = all_layouts[1];
	if (!gdr_hear(&where, 0) || gdr_heard_listens())
		return false;
	run("map 0 2 a");
	return !strcmp(picture(), "--------") && sees(0x71, 2608, 0x71);
}

/* An open that cannot ask for the version takes nothing from those before it. */
static bool stays_known(void)
{
	unsigned int newest = all_layouts[sizeof(all_layouts) / sizeof(all_layouts[0]) - 1];

	load(kernel, false);
	start(newest);
	if (!gdr_hear(&where, 0))
		return false;
	run("map 0 2 a");
	return !strcmp(picture(), "aa------");
}

static bool another_libcuda(void)
{
	struct gdr_slot first;

	load(kernel, false);
	first = where;
	start(all_layouts[1]);
	load(kernel, false);
	return !gdr_hear(&where, all_layouts[1]) && atomic_load(slot) == kernel && gdr_hear(&first, all_layouts[1]);
}

static bool without_a_slot(void)
{
	where = (struct gdr_slot){ 0 };
	return !gdr_hear(&where, all_layouts[1]) && !gdr_hears();
}

static bool stopped(void)
{
	load(kernel, false);
	start(all_layouts[1]);
	run("map 0 2 a");
	return gdr_heard_stop() && !gdr_heard_stop() && !strcmp(picture(), "--------") && gdr_hear(&where, all_layouts[1]) &&
	       !gdr_heard_listens();
}

static void in_child(const char *what, bool (*f)(void))
{
	int status = -1;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (!child)
		_exit(!f());
	waitpid(child, &status, 0);
	tap_ok(&tap, !status, "%s", what);
}

/* A child of one that listens has an empty table, and hears anew. */
static bool child_hears(void)
{
	run("map 0 2 a");
	if (strcmp(picture(), "--------") || !gdr_hear(&where, all_layouts[1]) || strcmp(picture(), "--------"))
		return false;
	run("map 0 2 a");
	return !strcmp(picture(), "aa------") && sees(0x71, 2608, 0x71);
}

/* Threads that make and free each their own memory, while others look and fork. */
static _Atomic bool stop;

static void *churn(void *arg)
{
	unsigned int unit = (unsigned int)(uintptr_t)arg;
	long wrong = 0;

	while (!stop) {
		struct gdr_heard e;

		uvm(73, unit, unit + 1, 0, 0);
		map(unit, unit + 1, (char)('a' + unit), 0, 0, 1);
		e = heard_at(unit);
		wrong += e.object != 'a' + unit;
		uvm(34, unit, unit + 1, 0, 0);
		rm_free(DEVICE, 'a' + unit);
	}
	return (void *)wrong;
}

static void *look_on(void *arg)
{
	struct gdr_heard e[UNITS];
	long wrong = 0;

	(void)arg;
	while (!stop) {
		struct gdr_hearing h = gdr_heard_at(BASE, BASE + UNITS / 2 * UNIT, e, UNITS);

		for (size_t i = 0; h.answer == GDR_HEARD && i < h.entries; i++)
			wrong += e[i].object != 'a' + (e[i].base - BASE) / UNIT;
	}
	return (void *)wrong;
}

static void on_alarm(int sig)
{
	int error = errno;

	(void)sig;
	uvm(73, UNITS - 1, UNITS, 0, 0);	/* a handler that allocates */
	errno = error;
}

static long join(pthread_t thread)
{
	void *wrong;

	pthread_join(thread, &wrong);
	return (long)wrong;
}

static void test_threads(void)
{
	pthread_t churners[UNITS / 2], looker;
	int status, bad = 0;
	long wrong = 0;

	start(all_layouts[2]);
	fflush(stdout);	/* the children's exit would write it again */
	stop = false;
	for (uintptr_t i = 0; i < UNITS / 2; i++)
		pthread_create(&churners[i], NULL, churn, (void *)i);
	pthread_create(&looker, NULL, look_on, NULL);
	for (int i = 0; i < FORKS; i++) {
		pid_t child = fork();

		if (!child) {
			alarm(20);
			exit(!child_hears());
		}
		waitpid(child, &status, 0);
		bad += status != 0;
		if (i % 10 == 0)
			pthread_kill(churners[i / 10 % (UNITS / 2)], SIGUSR1);
	}
	stop = true;
	for (int i = 0; i < UNITS / 2; i++)
		wrong += join(churners[i]);
	tap_is(&tap, wrong, 0, "threads: own memory that was not heard");
	tap_is(&tap, join(looker), 0, "threads: memory that was heard wrongly");
	tap_is(&tap, bad, 0, "children that were forked meanwhile, and did not hear or end");
}

int main(void)
{
	struct sigaction sa = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };

	alarm(300);	/* ends a test in which a thread waits for ever */
	sigaction(SIGUSR1, &sa, NULL);
	in_child("a tool comes later, and calls ours", a_tool_after);
	in_child("a tool comes later, and does not", a_deaf_tool_after);
	in_child("the loader binds the slot late", bound_late);
	in_child("the slot is read-only", is_read_only);
	in_child("a driver that is not known: exports alone are watched", is_unknown);
	in_child("an open that does not know the driver, after one that did", stays_known);
	in_child("another libcuda", another_libcuda);
	in_child("no slot", without_a_slot);
	in_child("the table ends", stopped);
	load(kernel, false);
	for (size_t i = 0; i < sizeof(all_layouts) / sizeof(all_layouts[0]); i++)
		test_rows(all_layouts[i]);
	test_entries();
	test_children();
	test_through();
	test_watch();
	test_left();
	start(all_layouts[1]);
	run("map 0 2 a");
	in_child("a child has an empty table, and hears anew", child_hears);
	tap_ok(&tap, !strcmp(picture(), "aa------"), "its parent's is as it was");
	test_threads();
	return tap_done(&tap);
}
