// SPDX-License-Identifier: MIT
/*
 * guest/lazy.c - loading the library starts nothing.
 *
 * This program is not linked to the library: it loads it by dlopen, as NCCL
 * does.
 */
#include "api.h"

/* The C library's: libraries register their fork handlers by it. */
static int fork_handlers;

int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *object)
{
	int (*real)(void (*)(void), void (*)(void), void (*)(void), void *);

	fork_handlers++;
	*(void **)&real = dlsym(RTLD_NEXT, "__register_atfork");
	return real(prepare, parent, child, object);
}

/* Adds the bytes of address space of an object, from its first segment to its last. */
static int add_object(struct dl_phdr_info *info, size_t size, void *sum)
{
	unsigned long page = sysconf(_SC_PAGESIZE), lo = -1ul, hi = 0;

	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type != PT_LOAD)
			continue;
		lo = p->p_vaddr < lo ? p->p_vaddr : lo;
		hi = p->p_vaddr + p->p_memsz > hi ? p->p_vaddr + p->p_memsz : hi;
	}
	if (hi)
		*(long *)sum += ((hi + page - 1) & -page) - (lo & -page);
	return 0;
}

/* KiB of address space that are neither in an object nor in malloc's heap. */
static long other_kib(void)
{
	long vm = proc_number("/proc/self/status", "VmSize:"), bytes = (long)(uintptr_t)sbrk(0);

	expect(vm > 0);
	dl_iterate_phdr(add_object, &bytes);
	return vm - bytes / 1024;
}

/* What loading must leave alone. */
struct quiet {
	struct raw_action act[65];
	stack_t altstack;
	uint64_t mask;
	long other_kib;
	int fork_handlers;
};

static void look(struct quiet *q)
{
	read_actions(q->act);
	expect_is(sigaltstack(NULL, &q->altstack), 0);
	q->mask = read_mask();
	q->other_kib = other_kib();
	q->fork_handlers = fork_handlers;
}

static void expect_quiet(const struct quiet *before)
{
	struct quiet now;

	look(&now);
	expect_is(count_threads(), 1);
	expect_same_actions(before->act, now.act);
	expect_is(now.altstack.ss_flags, before->altstack.ss_flags);
	expect(now.altstack.ss_sp == before->altstack.ss_sp);
	expect(now.mask == before->mask);
	expect_is(now.other_kib, before->other_kib);
	expect_is(now.fork_handlers, before->fork_handlers);
}

static void load_quietly(struct api *a, int flags)
{
	struct quiet before;
	double start;

	expect(!dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD));
	look(&before);
	start = seconds_now();
	expect((a->lib = dlopen(LIBRARY, flags)) != NULL);
	note("loaded in %.3f ms", (seconds_now() - start) * 1e3);
	expect_quiet(&before);
	load(a, LIBRARY, flags);
}

static void loads(void *flags)
{
	struct quiet before;
	int major = 0;
	struct api a;

	load_quietly(&a, (int)(uintptr_t)flags);
	look(&before);
	a.gdr_runtime_get_version(&major, NULL);
	expect_is(major, 2);
	expect_quiet(&before);
	full_work(&a);
}

static void *work_in_thread(void *api)
{
	full_work(api);
	return NULL;
}

/* A thread ends after a dlclose. */
static void *work_and_unload(void *api)
{
	struct api *a = api;

	full_work(a);
	expect_is(dlclose(a->lib), 0);
	return NULL;
}

static void reload(void)
{
	struct api a;

	load_quietly(&a, RTLD_NOW | RTLD_LOCAL);
	expect_is(dlclose(a.lib), 0);
	for (int i = 0; i < 5; i++) {
		load(&a, LIBRARY, RTLD_NOW | RTLD_LOCAL);
		full_work(&a);
		run_thread(0, work_in_thread, &a);
		expect_is(dlclose(a.lib), 0);
	}
	load(&a, LIBRARY, RTLD_NOW | RTLD_LOCAL);
	run_thread(0, work_and_unload, &a);
	sleep_us(10000);
}

static void use_a_copys_handles(const struct api *a, const struct api *b)
{
	gdr_t ga = a->gdr_open(), gb = b->gdr_open();
	int v;

	expect(ga && gb);
	expect_is(a->gdr_get_attribute(ga, GDR_ATTR_USE_PERSISTENT_MAPPING, &v), 0);
	expect_is(b->gdr_get_attribute(gb, GDR_ATTR_USE_PERSISTENT_MAPPING, &v), 0);
	full_work(a);
	full_work(b);
	expect_is(a->gdr_close(ga), 0);
	expect_is(a->gdr_get_attribute(ga, GDR_ATTR_USE_PERSISTENT_MAPPING, &v), EINVAL);
	expect_is(b->gdr_get_attribute(gb, GDR_ATTR_USE_PERSISTENT_MAPPING, &v), 0);
	full_work(b);
	full_work(a);
	expect_is(b->gdr_close(gb), 0);
}

static void child_opens(void *api)
{
	struct api *a = api;
	gdr_t g = a->gdr_open();

	expect(g != NULL);
	full_work(a);
	expect_is(a->gdr_close(g), 0);
}

/*
 * An update may replace the library's file while a process uses it. A forked
 * child starts the runtime anew, and needs no file for that.
 */
static void file_is_gone(void)
{
	char path[PATH_MAX], copy[PATH_MAX];
	struct api a, b;
	gdr_t g;

	load(&a, LIBRARY, RTLD_NOW | RTLD_LOCAL);
	library_path(a.lib, path);
	copy_library(path, copy);
	load(&b, copy, RTLD_NOW | RTLD_LOCAL);
	g = b.gdr_open();
	unlink(copy);
	expect(in_child("of a library whose file is gone", child_opens, &b, 20));
	full_work(&b);
	expect_is(b.gdr_close(g), 0);
}

/*
 * One copy came by LD_PRELOAD; a second one is loaded by its path. Its functions must stay its
 * own although the first one's have the same names and come first, as those do of an older
 * library that is linked into the program.
 */
static void preloaded(void)
{
	struct api first, second;

	expect_is(count_threads(), 1);
	load(&first, NULL, RTLD_NOW);
	load(&second, getenv("GUEST_PATH"), RTLD_NOW | RTLD_LOCAL);
	expect(first.gdr_open != second.gdr_open);
	expect_is(count_threads(), 1);
	use_a_copys_handles(&first, &second);
}

static void preload(void)
{
	char path[PATH_MAX], copy[PATH_MAX];
	struct api a;

	load(&a, LIBRARY, RTLD_NOW | RTLD_LOCAL);
	library_path(a.lib, path);
	copy_library(path, copy);
	run_with_preloaded(copy, "preloaded", path);
}

const struct guest_case cases[] = {
	{ "dlopen RTLD_LOCAL starts nothing, then all works", NULL, 60, 0, loads, (void *)(RTLD_NOW | RTLD_LOCAL) },
	{ "the same with RTLD_DEEPBIND", NULL, 60, 0, loads, (void *)(RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) },
	{ "dlclose and dlopen again", reload, 60, 0 },
	{ "a forked child of a library whose file is gone", file_is_gone, 60, 0 },
	{ "a preloaded copy over another", preload, 60, 0 },
	{ "preloaded", preloaded },
	{ 0 }
};
