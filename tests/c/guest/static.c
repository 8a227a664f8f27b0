// SPDX-License-Identifier: MIT
/*
 * guest/static.c - the library in a program that has an older one linked in.
 *
 * The program has functions of its own under the library's names, as one has
 * that was linked statically to an older GDRCopy: their handles are pointers,
 * and some newer functions are missing. They are in the program's dynamic symbol
 * table (-rdynamic), where a lookup by name finds them before those of a library
 * that something else in the process loads. Neither may notice the other.
 */
#include "api.h"

/* The older one's state, which its handles point to. */
struct gdr {
	int calls;
	unsigned char bytes[64];
};

static int calls_of_any;	/* of an older function with whatever handle */

static struct gdr *old_state(gdr_mh_t handle)
{
	calls_of_any++;
	return (struct gdr *)(uintptr_t)handle.h;
}

gdr_t gdr_open(void)
{
	calls_of_any++;
	return calloc(1, sizeof(struct gdr));
}

int gdr_close(gdr_t g)
{
	calls_of_any++;
	free(g);
	return 0;
}

int gdr_pin_buffer(gdr_t g, unsigned long addr, size_t size, uint64_t token,
		   uint32_t va_space, gdr_mh_t *handle)
{
	calls_of_any++;
	handle->h = (uintptr_t)g;
	return 0;
}

int gdr_unpin_buffer(gdr_t g, gdr_mh_t handle)
{
	return old_state(handle) == g ? 0 : EINVAL;
}

int gdr_map(gdr_t g, gdr_mh_t handle, void **va, size_t size)
{
	*va = old_state(handle)->bytes;
	return old_state(handle) == g ? 0 : EINVAL;
}

int gdr_unmap(gdr_t g, gdr_mh_t handle, void *va, size_t size)
{
	return old_state(handle) == g && va == old_state(handle)->bytes ? 0 : EINVAL;
}

int gdr_copy_to_mapping(gdr_mh_t handle, void *dst, const void *src, size_t size)
{
	old_state(handle)->calls++;
	memcpy(dst, src, size);
	return 0;
}

int gdr_copy_from_mapping(gdr_mh_t handle, void *dst, const void *src, size_t size)
{
	old_state(handle)->calls++;
	memcpy(dst, src, size);
	return 0;
}

void gdr_runtime_get_version(int *major, int *minor)
{
	calls_of_any++;
	*major = 2;
	*minor = 0;
}

/* The older one's own users go on as before. */
static void use_the_older(void)
{
	gdr_t g = gdr_open();
	char in[8] = "", out[8] = "older";
	int major, minor;
	gdr_mh_t mh;
	void *va;

	expect(g != NULL);
	gdr_runtime_get_version(&major, &minor);
	expect_is(minor, 0);
	expect_is(gdr_pin_buffer(g, 4096, 64, 0, 0, &mh), 0);
	expect_is(mh.h, (uintptr_t)g);
	expect_is(gdr_map(g, mh, &va, 64), 0);
	expect_is(gdr_copy_to_mapping(mh, va, out, sizeof(out)), 0);
	expect_is(gdr_copy_from_mapping(mh, in, va, sizeof(in)), 0);
	expect(!memcmp(in, out, sizeof(in)));
	expect_is(((struct gdr *)g)->calls, 2);
	expect_is(gdr_unmap(g, mh, va, 64), 0);
	expect_is(gdr_unpin_buffer(g, mh), 0);
	expect_is(gdr_close(g), 0);
}

/* No call of the library may end in one of the program's functions. */
static void use_the_library(const struct api *a)
{
	int before = calls_of_any, major, minor;

	a->gdr_runtime_get_version(&major, &minor);
	expect_is(minor, 6);
	full_work(a);
	expect_is(calls_of_any, before);
}

static void side_by_side(void *flags)
{
	struct api a;

	expect(dlsym(RTLD_DEFAULT, "gdr_open") == (void *)gdr_open);
	expect(!dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD));
	use_the_older();
	load(&a, LIBRARY, RTLD_NOW | (uintptr_t)flags);
	expect(a.gdr_open != gdr_open && a.gdr_copy_to_mapping != gdr_copy_to_mapping);
	use_the_library(&a);
	use_the_older();
	use_the_library(&a);
}

const struct guest_case cases[] = {
	{ "beside an older one, RTLD_LOCAL", NULL, 60, 0, side_by_side, (void *)RTLD_LOCAL },
	{ "beside an older one, RTLD_GLOBAL", NULL, 60, 0, side_by_side, (void *)RTLD_GLOBAL },
	{ 0 }
};
