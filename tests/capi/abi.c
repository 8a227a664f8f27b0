// SPDX-License-Identifier: MIT
/*
 * abi_test - capi/abi.c, built in here, over a front and a core that write down what they are
 * asked, in order. Each function: what it hands over, what it answers and where; the same where
 * the core fails, where there is no room, where a handle is a parent's, and without a place for
 * the answer.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tap.h"
#include "../../capi/abi.c"

/* What a call is given. Each fills its type, and none is another one's. */
#define G ((gdr_t)0x8001000000000011)
#define MH ((gdr_mh_t){ 0x8002000000000022 })
#define MEM ((gdr_mem_t){ 0x8003000000000033 })
#define ADDR 0x8004000000000044ul
#define SIZE 0x8005000000000055ul
#define TOKEN 0x8006000000000066ul
#define SPACE 0x80000077u
#define FLAGS 0x80000088u
#define VA ((void *)0x8009000000000099)
#define DEVICE (-10)

static struct tap tap;

/* How the steps end. */
static struct {
	int admit, room, start, threads, core;	/* errno values */
	int copies;		/* how often the core says first that copies run */
	bool inherited;		/* the handle is a parent's */
} of;

static char did[1024];		/* what was asked since the call began */

static int was(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static int was(const char *fmt, ...)
{
	size_t used = strlen(did);
	va_list args;

	used += snprintf(did + used, sizeof(did) - used, "%s", used ? "; " : "");
	va_start(args, fmt);
	vsnprintf(did + used, sizeof(did) - used, fmt, args);
	va_end(args);
	errno = ENOTUNIQ;	/* the host's is to stay */
	return of.core;
}

/* The front. Nothing of it changes errno but what runs inside. */

_Atomic(struct gdr_front *) gdr_front_page;
static struct gdr_front front;

static int keeping_errno(int rc, int was_errno)
{
	errno = was_errno;
	return rc;
}

#define NOTE(rc, ...) ({ int error_ = errno; was(__VA_ARGS__); keeping_errno(rc, error_); })

bool gdr_front_inherited(uint64_t handle)
{
	NOTE(0, "inherited %lx", handle);
	return of.inherited;
}

int gdr_front_close_inherited(uint64_t g)
{
	return NOTE(of.admit, "close inherited %lx", g);
}

int gdr_front_admit(uint64_t a, uint64_t b)
{
	return NOTE(of.admit, "admit %lx %lx", a, b);
}

int gdr_front_start(const struct gdr_options *opts, gdr_core_init *init)
{
	was("start %s", opts->backend);
	if (init != gdrcore_init)
		was("another core");
	/* From here on there is a reserve. */
	if (!of.start)
		atomic_store(&gdr_front_page, &front);
	return of.start;
}

void gdr_guest_enter(struct gdr_guest *g)
{
	g->error = errno;
	g->cancel = 77;
	NOTE(0, "in");
}

void gdr_guest_leave(const struct gdr_guest *g)
{
	was(g->cancel == 77 ? "out" : "out of another");
	errno = g->error;
}

int gdr_reserve_enter(bool needed)
{
	was(needed ? "needed" : "room");
	return needed ? 0 : of.room;
}

void gdr_reserve_leave(void)
{
	was("give back");
}

void gdr_data_forget(uint64_t key)
{
	NOTE(0, "forget %lx", key);
}

void gdr_data_wait(unsigned int tries)
{
	NOTE(0, "wait %u", tries);
}

void gdr_log_set_level(int level)
{
	NOTE(0, "level %d", level);
}

__attribute__((format(printf, 2, 3)))
void gdr_log(int level, const char *fmt, ...)
{
	char line[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	NOTE(0, "%s: %s", level == GDR_LOG_ERROR ? "log" : "log of another level", line);
}

struct gdr_options gdr_env_options(void)
{
	NOTE(0, "environment");
	return (struct gdr_options){ .backend = "its own", .log_level = GDR_LOG_WARN };
}

int copy_plan_set_threads(unsigned int reads, unsigned int writes)
{
	return NOTE(of.threads, "plan %u %u", reads, writes);
}

void copy_plan_set_choice(bool chooses)
{
	NOTE(0, "plan %s", chooses ? "choice" : "no choice");
}

/* The core. It writes its answers where it fails, too: nobody is to hand them on. */

int gdrcore_init(uint32_t epoch, uintptr_t *table)
{
	(void)table;
	return was("init %u", epoch);
}

int gdrcore_open(struct gdr_options *opts, uint64_t *g)
{
	*g = of.core ? 0 : (uintptr_t)G;	/* NULL where it fails */
	return was("open %s", opts->backend);
}

static int end(int rc)
{
	return of.copies-- > 0 ? GDR_CORE_COPIES : rc;
}

int gdrcore_close(uint64_t g)
{
	return end(was("close %lx", g));
}

int gdrcore_pin(uint64_t g, uint64_t addr, uint64_t size, uint64_t token, uint32_t va_space, uint32_t flags, uint64_t *h)
{
	*h = MH.h;
	return was("pin %lx %lx %lx %lx %x %x", g, addr, size, token, va_space, flags);
}

int gdrcore_unpin(uint64_t g, uint64_t h)
{
	return end(was("unpin %lx %lx", g, h));
}

int gdrcore_map(uint64_t g, uint64_t h, uint64_t size, int flags, uint64_t *va)
{
	*va = (uintptr_t)VA;
	return was("map %lx %lx %lx %d", g, h, size, flags);
}

int gdrcore_start_threads(void)
{
	return was("start threads");
}

int gdrcore_unmap(uint64_t g, uint64_t h, uint64_t va, uint64_t size)
{
	return end(was("unmap %lx %lx %lx %lx", g, h, va, size));
}

static uint32_t mapping_type = GDR_MAPPING_TYPE_WC, mapped = 1;

int gdrcore_info(uint64_t g, uint64_t h, struct gdr_core_info *info)
{
	*info = (struct gdr_core_info){
		.va = ADDR, .mapped_size = SIZE, .tm_cycles = TOKEN, .page_size = SPACE, .cycles_per_ms = FLAGS,
		.mapped = mapped, .mapping_type = mapping_type,
	};
	return was("info %lx %lx", g, h);
}

int gdrcore_callback_flag(uint64_t g, uint64_t h, int *flag)
{
	*flag = -5;
	return was("flag %lx %lx", g, h);
}

int gdrcore_attribute(uint64_t g, int attr, int *value)
{
	*value = -6;
	return was("attribute %lx %d", g, attr);
}

int gdrcore_driver_version(uint64_t g, int *major, int *minor)
{
	*major = 7;
	*minor = 8;
	return was("version %lx", g);
}

/* It alone writes to the caller's memory. It does not where it fails. */
int gdrcore_backend(uint64_t g, char *name, size_t size)
{
	if (!of.core && name)
		strcpy(name, "some");
	return was("backend %lx %zx", g, size);
}

int gdrcore_mem_alloc(uint64_t g, int device, uint64_t size, uint64_t *m)
{
	*m = MEM.h;
	return was("alloc %lx %d %lx", g, device, size);
}

int gdrcore_mem_free(uint64_t g, uint64_t m)
{
	return was("free %lx %lx", g, m);
}

int gdrcore_mem_ptr(uint64_t g, uint64_t m, uint64_t *ptr, uint64_t *size)
{
	*ptr = ADDR;
	*size = SIZE;
	return was("ptr %lx %lx", g, m);
}

int gdrcore_mem_export(uint64_t g, uint64_t m, uint32_t flags, int *fd)
{
	*fd = 9;
	return was("export %lx %lx %x", g, m, flags);
}

/* Where calls write. */
struct places {
	gdr_mh_t mh;
	gdr_mem_t mem;
	gdr_info_v2_t info;
	void *va;
	unsigned long addr;
	size_t size;
	int v, v2;
	char name[16];
};

static struct places out;

#define CALL(name, ...) static int name(void) { return __VA_ARGS__; }
/* What it writes if all goes well. */
#define ANSWERS(name, answer, ...)						\
	CALL(name, __VA_ARGS__)							\
	static void name##_answers(struct places *p) { (void)p; answer; }

static const struct gdr_info_v2 the_info = {
	.va = ADDR, .mapped_size = SIZE, .page_size = SPACE, .tm_cycles = TOKEN, .cycles_per_ms = FLAGS,
	.mapped = 1, .wc_mapping = 1, .mapping_type = GDR_MAPPING_TYPE_WC,
};

ANSWERS(close_it, , gdr_close(G))
ANSWERS(pin_it, p->mh = MH, gdr_pin_buffer(G, ADDR, SIZE, TOKEN, SPACE, &out.mh))
ANSWERS(pin_v2, p->mh = MH, gdr_pin_buffer_v2(G, ADDR, SIZE, FLAGS, &out.mh))
ANSWERS(unpin_it, , gdr_unpin_buffer(G, MH))
ANSWERS(flag_of, p->v = -5, gdr_get_callback_flag(G, MH, &out.v))
ANSWERS(info_v2, p->info = the_info, gdr_get_info_v2(G, MH, &out.info))
ANSWERS(info_v1, memcpy(&p->info, &the_info, 40), gdr_get_info(G, MH, (struct info_v1 *)&out.info))
ANSWERS(map_it, p->va = VA, gdr_map(G, MH, &out.va, SIZE))
ANSWERS(map_v2, p->va = VA, gdr_map_v2(G, MH, &out.va, SIZE, -3))
ANSWERS(unmap_it, , gdr_unmap(G, MH, VA, SIZE))
ANSWERS(version_of, p->v = 7; p->v2 = 8, gdr_driver_get_version(G, &out.v, &out.v2))
ANSWERS(backend_of, strcpy(p->name, "some"), gdr_get_backend(G, out.name, sizeof(out.name)))
ANSWERS(attribute_of, p->v = -6, gdr_get_attribute(G, (gdr_attr_t)-4, &out.v))
ANSWERS(alloc_it, p->mem = MEM, gdr_mem_alloc(G, DEVICE, SIZE, 0, &out.mem))
ANSWERS(free_it, , gdr_mem_free(G, MEM))
ANSWERS(ptr_of, p->addr = ADDR; p->size = SIZE, gdr_mem_get_device_ptr(G, MEM, &out.addr, &out.size))
ANSWERS(ptr_alone, p->addr = ADDR, gdr_mem_get_device_ptr(G, MEM, &out.addr, NULL))
ANSWERS(export_it, p->v = 9, gdr_mem_export_dmabuf(G, MEM, FLAGS, &out.v))

CALL(no_pin, gdr_pin_buffer(G, ADDR, SIZE, TOKEN, SPACE, NULL))
CALL(no_pin_v2, gdr_pin_buffer_v2(G, ADDR, SIZE, FLAGS, NULL))
CALL(no_flag, gdr_get_callback_flag(G, MH, NULL))
CALL(no_info_v2, gdr_get_info_v2(G, MH, NULL))
CALL(no_info_v1, gdr_get_info(G, MH, NULL))
CALL(no_map, gdr_map(G, MH, NULL, SIZE))
CALL(no_map_v2, gdr_map_v2(G, MH, NULL, SIZE, 1))
CALL(no_major, gdr_driver_get_version(G, NULL, &out.v))
CALL(no_minor, gdr_driver_get_version(G, &out.v, NULL))
CALL(no_version, gdr_driver_get_version(G, NULL, NULL))
CALL(no_backend, gdr_get_backend(G, NULL, 16))
CALL(no_attribute, gdr_get_attribute(G, GDR_ATTR_USING_DMA_BUF_MMAP, NULL))
CALL(no_alloc, gdr_mem_alloc(G, DEVICE, SIZE, 0, NULL))
CALL(no_alloc_flags, gdr_mem_alloc(G, DEVICE, SIZE, FLAGS, NULL))
CALL(alloc_flags, gdr_mem_alloc(G, DEVICE, SIZE, FLAGS, &out.mem))
CALL(no_ptr, gdr_mem_get_device_ptr(G, MEM, NULL, &out.size))
CALL(no_export, gdr_mem_export_dmabuf(G, MEM, FLAGS, NULL))

static const struct places untouched = {
	.mh = { 1 }, .mem = { 2 }, .info = { .va = 3, .mapping_type = 4 }, .va = &out, .addr = 6, .size = 7, .v = 8, .v2 = 9, .name = "ten",
};

/* The bits beside mapped, and the bytes behind the last member, may be any. */
static bool same_info(const gdr_info_v2_t *a, const gdr_info_v2_t *b)
{
	return a->va == b->va && a->mapped_size == b->mapped_size && a->page_size == b->page_size && a->tm_cycles == b->tm_cycles &&
	       a->cycles_per_ms == b->cycles_per_ms && a->mapped == b->mapped && a->wc_mapping == b->wc_mapping && a->mapping_type == b->mapping_type;
}

static bool same(const struct places *a, const struct places *b)
{
	return same_info(&a->info, &b->info) && a->mh.h == b->mh.h && a->mem.h == b->mem.h && a->va == b->va && a->addr == b->addr &&
	       a->size == b->size && a->v == b->v && a->v2 == b->v2 && !strcmp(a->name, b->name);
}

/* One call: its steps, its answer, what it writes. errno stays. */
static void is_call(int (*call)(void), const char *steps, int rc, const struct places *want, const char *what)
{
	int got, error;

	out = untouched;
	did[0] = '\0';
	errno = EXDEV;
	got = call();
	error = errno;
	if (!tap_ok(&tap, got == rc && error == EXDEV && !strcmp(did, steps) && same(&out, want), "%s", what))
		printf("# %d, errno %d, %s: %s\n# want %s\n", got, error, same(&out, want) ? "the answers" : "other answers", did, steps);
}

#define WITH_G "admit 8001000000000011 0"
#define WITH_MH "admit 8001000000000011 8002000000000022"
#define WITH_MEM "admit 8001000000000011 8003000000000033"

/* The functions that enter the core. */
static const struct call {
	const char *name;
	int (*call)(void);
	void (*answers)(struct places *p);
	const char *admit;	/* its steps up to there */
	const char *forget;	/* those before it enters */
	const char *core;
	enum {
		NEEDED,		/* room or not */
		ROOM,		/* it takes something */
		ENDS,		/* needed; it may end mappings */
	} kind;
} calls[] = {
#define OF(call) call, call##_answers
	{ "gdr_close", OF(close_it), "inherited 8001000000000011; " WITH_G, "; forget 0", "close 8001000000000011", ENDS },
	{ "gdr_pin_buffer", OF(pin_it), WITH_G, "",
	  "pin 8001000000000011 8004000000000044 8005000000000055 8006000000000066 80000077 0", ROOM },
	{ "gdr_pin_buffer_v2", OF(pin_v2), WITH_G, "",
	  "pin 8001000000000011 8004000000000044 8005000000000055 0 0 80000088", ROOM },
	{ "gdr_unpin_buffer", OF(unpin_it), WITH_MH, "; forget 8002000000000022",
	  "unpin 8001000000000011 8002000000000022", ENDS },
	{ "gdr_get_callback_flag", OF(flag_of), WITH_MH, "", "flag 8001000000000011 8002000000000022", NEEDED },
	{ "gdr_get_info_v2", OF(info_v2), WITH_MH, "", "info 8001000000000011 8002000000000022", NEEDED },
	{ "gdr_get_info of old programs", OF(info_v1), WITH_MH, "", "info 8001000000000011 8002000000000022", NEEDED },
	{ "gdr_map", OF(map_it), WITH_MH, "",
	  "map 8001000000000011 8002000000000022 8005000000000055 0", ROOM },
	{ "gdr_map_v2", OF(map_v2), WITH_MH, "",
	  "map 8001000000000011 8002000000000022 8005000000000055 -3", ROOM },
	{ "gdr_unmap", OF(unmap_it), WITH_MH, "; forget 8002000000000022",
	  "unmap 8001000000000011 8002000000000022 8009000000000099 8005000000000055", ENDS },
	{ "gdr_driver_get_version", OF(version_of), WITH_G, "", "version 8001000000000011", NEEDED },
	{ "gdr_get_backend", OF(backend_of), WITH_G, "", "backend 8001000000000011 10", NEEDED },
	{ "gdr_get_attribute", OF(attribute_of), WITH_G, "", "attribute 8001000000000011 -4", NEEDED },
	{ "gdr_mem_alloc", OF(alloc_it), WITH_G, "", "alloc 8001000000000011 -10 8005000000000055", ROOM },
	{ "gdr_mem_free", OF(free_it), WITH_MEM, "", "free 8001000000000011 8003000000000033", NEEDED },
	{ "gdr_mem_get_device_ptr", OF(ptr_of), WITH_MEM, "", "ptr 8001000000000011 8003000000000033", NEEDED },
	{ "gdr_mem_get_device_ptr without a size", OF(ptr_alone), WITH_MEM, "",
	  "ptr 8001000000000011 8003000000000033", NEEDED },
	{ "gdr_mem_export_dmabuf", OF(export_it), WITH_MEM, "",
	  "export 8001000000000011 8003000000000033 80000088", ROOM },
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* What a call that fails leaves. gdr_get_attribute answers 0 all the same, as the original does. */
static struct places left_by(const struct call *c)
{
	struct places p = untouched;

	if (c->call == attribute_of)
		p.v = 0;
	return p;
}

static void test_calls(void)
{
	for (size_t i = 0; i < COUNT(calls); i++) {
		const struct call *c = &calls[i];
		struct places answers = untouched, left = left_by(c);
		char steps[1024], what[128];
		const char *need = c->kind == ROOM ? "room" : "needed";

		c->answers(&answers);
		snprintf(steps, sizeof(steps), "%s%s; in; %s; %s; give back; out", c->admit, c->forget, need, c->core);
		is_call(c->call, steps, 0, &answers, c->name);

		of.core = EPROTO;
		snprintf(what, sizeof(what), "%s: the core refuses", c->name);
		is_call(c->call, steps, EPROTO, &left, what);
		of.core = 0;

		of.admit = EACCES;
		snprintf(what, sizeof(what), "%s: a handle is a parent's", c->name);
		is_call(c->call, c->admit, EACCES, &left, what);
		of.admit = 0;

		of.room = ENOMEM;
		if (c->kind == ROOM)
			snprintf(steps, sizeof(steps), "%s%s; in; room; out", c->admit, c->forget);
		snprintf(what, sizeof(what), "%s: there is no room", c->name);
		is_call(c->call, steps, c->kind == ROOM ? ENOMEM : 0, c->kind == ROOM ? &left : &answers, what);
		of.room = 0;

		if (c->kind != ENDS)
			continue;
		snprintf(steps, sizeof(steps), "%s%s; in; needed; %s; give back; out; wait 0; in; needed; %s; give back; out; wait 1;"
			 " in; needed; %s; give back; out", c->admit, c->forget, c->core, c->core, c->core);
		for (int rc = 0; rc <= EPROTO; rc += EPROTO) {
			of.core = rc;
			of.copies = 2;
			snprintf(what, sizeof(what), "%s: copies run, twice, then %d", c->name, rc);
			is_call(c->call, steps, rc, &left, what);
		}
		of.core = of.copies = 0;
	}
}

/* What is not even handed over: the line names the function and says why. */
static void test_refused(void)
{
	static const struct {
		int (*call)(void);
		const char *admit, *line;
	} rows[] = {
#define NO_PLACE(call, place) call ": no place for the answer: " place " is NULL (errno 22)"
		{ no_pin, WITH_G, NO_PLACE("gdr_pin_buffer", "handle") },
		{ no_pin_v2, WITH_G, NO_PLACE("gdr_pin_buffer", "handle") },
		{ no_flag, WITH_MH, NO_PLACE("gdr_get_callback_flag", "flag") },
		{ no_info_v2, WITH_MH, NO_PLACE("gdr_get_info_v2", "info") },
		{ no_info_v1, WITH_MH, NO_PLACE("gdr_get_info", "info") },
		{ no_map, WITH_MH, NO_PLACE("gdr_map", "va") },
		{ no_map_v2, WITH_MH, NO_PLACE("gdr_map", "va") },
		{ no_major, WITH_G, NO_PLACE("gdr_driver_get_version", "major") },
		{ no_minor, WITH_G, NO_PLACE("gdr_driver_get_version", "minor") },
		{ no_version, WITH_G, NO_PLACE("gdr_driver_get_version", "major") },
		{ no_backend, WITH_G, NO_PLACE("gdr_get_backend", "name") },
		{ no_attribute, WITH_G, NO_PLACE("gdr_get_attribute", "v") },
		{ no_alloc, WITH_G, NO_PLACE("gdr_mem_alloc", "mem") },
		{ no_alloc_flags, WITH_G, NO_PLACE("gdr_mem_alloc", "mem") },
		{ alloc_flags, WITH_G, "gdr_mem_alloc: no flags are defined: pass 0 (errno 22)" },
		{ no_ptr, WITH_MEM, NO_PLACE("gdr_mem_get_device_ptr", "dptr") },
		{ no_export, WITH_MEM, NO_PLACE("gdr_mem_export_dmabuf", "fd") },
	};

	for (size_t i = 0; i < COUNT(rows); i++) {
		char steps[512], what[512];

		snprintf(steps, sizeof(steps), "%s; log: %s", rows[i].admit, rows[i].line);
		is_call(rows[i].call, steps, EINVAL, &untouched, rows[i].line);
		of.admit = EACCES;
		snprintf(what, sizeof(what), "in a child, not: %s", rows[i].line);
		is_call(rows[i].call, rows[i].admit, EACCES, &untouched, what);
		of.admit = 0;
	}
}

/* A parent's gdr_t is closed here, once, and nothing is forgotten or handed over. */
static void test_close_inherited(void)
{
	static const char steps[] = "inherited 8001000000000011; close inherited 8001000000000011";

	of.inherited = true;
	is_call(close_it, steps, 0, &untouched, "gdr_close of a parent's gdr_t");
	of.admit = EACCES;
	is_call(close_it, steps, EACCES, &untouched, "gdr_close of a parent's gdr_t, again");
	of.admit = 0;
	of.inherited = false;
}

/* What a mapping is like, for both forms of the struct. */
static void test_info(void)
{
	for (uint32_t type = GDR_MAPPING_TYPE_NONE; type < GDR_MAPPING_TYPE_MAX; type++) {
		gdr_info_v2_t info = { 0 }, old = { 0 };
		bool wc = type == GDR_MAPPING_TYPE_WC;

		mapping_type = type;
		mapped = type != GDR_MAPPING_TYPE_NONE;
		tap_ok(&tap, !gdr_get_info_v2(G, MH, &info) && info.mapping_type == (gdr_mapping_type_t)type && info.mapped == mapped && info.wc_mapping == wc,
		       "gdr_get_info_v2, mapping type %u", type);
		tap_ok(&tap, !gdr_get_info(G, MH, (struct info_v1 *)&old) && old.mapped == mapped && old.wc_mapping == wc && !old.mapping_type,
		       "gdr_get_info, mapping type %u", type);
	}
}

/* gdr_open alone sets errno. It has room only where the core runs already. */
static void test_open(void)
{
	static const struct {
		const char *what, *steps;
		bool up;
		int start, core, room, error;
	} rows[] = {
		{ "the first", "environment; level 3; in; start its own; open its own; out", .error = EXDEV },
		{ "another", "environment; level 3; in; room; start its own; open its own; give back; out", .up = true, .error = EXDEV },
		{ "the start fails", "environment; level 3; in; start its own; out", .start = ENODEV, .error = ENODEV },
		{ "the core refuses", "environment; level 3; in; start its own; open its own; out", .core = EPERM, .error = EPERM },
		{ "there is no room", "environment; level 3; in; room; out", .up = true, .room = ENOMEM, .error = ENOMEM },
		{ "room is not asked for", "environment; level 3; in; start its own; open its own; out", .room = ENOMEM, .error = EXDEV },
	};

	for (size_t i = 0; i < COUNT(rows); i++) {
		gdr_t want = rows[i].error == EXDEV ? G : NULL, g;
		int error;

		atomic_store(&gdr_front_page, rows[i].up ? &front : NULL);
		of.start = rows[i].start;
		of.core = rows[i].core;
		of.room = rows[i].room;
		did[0] = '\0';
		errno = EXDEV;
		g = gdr_open();
		error = errno;
		of.start = of.core = of.room = 0;
		if (!tap_ok(&tap, g == want && error == rows[i].error && !strcmp(did, rows[i].steps), "gdr_open: %s", rows[i].what))
			printf("# %p, errno %d: %s\n", (void *)g, error, did);
	}
	atomic_store(&gdr_front_page, &front);
}

CALL(threads_3_5, gdr_set_copy_threads(3, 5))
CALL(policy_auto, gdr_set_copy_policy(GDR_COPY_POLICY_AUTO))
CALL(policy_caller, gdr_set_copy_policy(GDR_COPY_POLICY_CALLER))
CALL(policy_2, gdr_set_copy_policy((gdr_copy_policy_t)2))
CALL(policy_less, gdr_set_copy_policy((gdr_copy_policy_t)-1))

/* Threads are started where the core runs. Where that fails, the plan has changed all the same. */
static void test_plan(void)
{
	static const struct {
		const char *what;
		int (*call)(void);
		const char *plan;
	} rows[] = {
		{ "gdr_set_copy_threads", threads_3_5, "plan 3 5" },
		{ "gdr_set_copy_policy, AUTO", policy_auto, "plan choice" },
		{ "gdr_set_copy_policy, CALLER", policy_caller, "plan no choice" },
	};
	static const char bad[] = "log: gdr_set_copy_policy: there is no such policy (errno 22)";

	for (size_t i = 0; i < COUNT(rows); i++) {
		char steps[128], what[128];

		atomic_store(&gdr_front_page, NULL);
		snprintf(what, sizeof(what), "%s before gdr_open", rows[i].what);
		is_call(rows[i].call, rows[i].plan, 0, &untouched, what);
		atomic_store(&gdr_front_page, &front);
		snprintf(steps, sizeof(steps), "%s; in; room; start threads; give back; out", rows[i].plan);
		is_call(rows[i].call, steps, 0, &untouched, rows[i].what);
		of.core = EAGAIN;
		snprintf(what, sizeof(what), "%s: no thread can be started", rows[i].what);
		is_call(rows[i].call, steps, ENOMEM, &untouched, what);
		of.core = 0;
		of.room = ENOMEM;
		snprintf(steps, sizeof(steps), "%s; in; room; out", rows[i].plan);
		snprintf(what, sizeof(what), "%s: there is no room", rows[i].what);
		is_call(rows[i].call, steps, ENOMEM, &untouched, what);
		of.room = 0;
	}
	of.threads = EINVAL;
	is_call(threads_3_5, "plan 3 5; log: gdr_set_copy_threads: ask for 1 to 64 threads (errno 22)", EINVAL, &untouched,
		"gdr_set_copy_threads: such numbers cannot be");
	of.threads = 0;
	is_call(policy_2, bad, EINVAL, &untouched, "gdr_set_copy_policy: there is no third policy");
	is_call(policy_less, bad, EINVAL, &untouched, "gdr_set_copy_policy: nor one before the first");
}

/* What needs no core, nor a gdr_t. */
static void test_texts(void)
{
	static const char *const names[] = { "None", "Write Combining", "Caching", "Device" };
	static const char no_type[] = "log: gdr_get_mapping_type_string: no such mapping type; gdr_mapping_type_t lists them (errno 22)";
	const char *text = no_type;
	int major = -1, minor = -1;
	bool good = true;

	did[0] = '\0';
	errno = EXDEV;
	for (int i = 0; i < 4; i++)
		good &= !gdr_get_mapping_type_string(i, &text) && !strcmp(text, names[i]);
	tap_ok(&tap, good && !*did, "gdr_get_mapping_type_string: each type");
	text = names[0];
	for (int i = -1; i <= 4; i += 5) {
		did[0] = '\0';
		tap_ok(&tap, gdr_get_mapping_type_string(i, &text) == EINVAL && text == names[0] && !strcmp(did, no_type),
		       "gdr_get_mapping_type_string: there is no type %d", i);
	}
	did[0] = '\0';
	tap_ok(&tap, gdr_get_mapping_type_string(1, NULL) == EINVAL &&
	       !strcmp(did, "log: gdr_get_mapping_type_string: no place for the answer: str is NULL (errno 22)"),
	       "gdr_get_mapping_type_string: no place for it");
	did[0] = '\0';
	gdr_runtime_get_version(&major, NULL);
	gdr_runtime_get_version(NULL, &minor);
	gdr_runtime_get_version(NULL, NULL);
	tap_ok(&tap, major == 2 && minor == 6, "gdr_runtime_get_version: each part, if it is asked for");
	tap_ok(&tap, !strcmp(gdr_ext_version(), "libgdrapi of an unknown build"), "gdr_ext_version: where the build wrote none");
	tap_ok(&tap, errno == EXDEV && !*did, "none of them asks anybody, or changes errno");
}

int main(void)
{
	atomic_store(&front.up, 1);
	test_open();
	test_calls();
	test_refused();
	test_close_inherited();
	test_info();
	test_plan();
	test_texts();
	return tap_done(&tap);
}
