// SPDX-License-Identifier: MIT
/*
 * vkgdr.c - vkgdr's interface on that of libgdrapi.so.2: gdr_mem_alloc, gdr_pin_buffer
 * and gdr_map are one vkgdr_memory_alloc.
 */
#include <vkgdr.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gdrapi.h>
#include <gdrapi_ext.h>

#define KNOWN_FLAGS (VKGDR_OPEN_CURRENT_CONTEXT_BIT | VKGDR_OPEN_FORCE_NON_COHERENT_BIT | \
		     VKGDR_OPEN_REQUIRE_COHERENT_BIT)

/* Lives until it is closed and its last memory is freed. */
struct vkgdr {
	gdr_t g;
	int device;
	atomic_size_t users;	/* who opened it, and each memory */
};

/* Pinned and mapped from its making to its end. */
struct vkgdr_memory {
	struct vkgdr *owner;
	gdr_mem_t mem;
	gdr_mh_t mh;
	unsigned long device_ptr;
	void *host_ptr;
	size_t size;	/* that was asked for */
};

static _Thread_local char last_error[256] = "";

static void __attribute__((format(printf, 1, 2))) say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(last_error, sizeof(last_error), format, args);
	va_end(args);
}

static void say_errno(const char *call, int err)
{
	say("%s: %s; GDRCOPY_ENABLE_LOGGING=1 in the environment makes it say why", call, strerror(err));
}

const char *vkgdr_last_error(void)
{
	return last_error;
}

/* The GPU that is meant. CUDA is the program's: this loads none. */
static bool find_device(CUdevice device, uint32_t flags, int *found)
{
	const char *call = flags & VKGDR_OPEN_CURRENT_CONTEXT_BIT ? "cuCtxGetDevice" : "cuDeviceGet";
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *fn;
	int result;

	if (!cuda) {
		say("vkgdr_open: libcuda.so.1 is not loaded; call cuInit first");
		return false;
	}
	fn = dlsym(cuda, call);
	if (!fn)
		result = -1;
	else if (flags & VKGDR_OPEN_CURRENT_CONTEXT_BIT)
		result = ((int (*)(int *))fn)(found);
	else
		result = ((int (*)(int *, int))fn)(found, device);
	dlclose(cuda);
	if (result)
		say("%s: CUDA answers %d; was cuInit called, and is there such a GPU?", call, result);
	return !result;
}

static void drop(struct vkgdr *v)
{
	if (atomic_fetch_sub(&v->users, 1) > 1)
		return;
	gdr_close(v->g);
	free(v);
}

vkgdr_t vkgdr_open(CUdevice device, uint32_t flags)
{
	struct vkgdr *v;
	int found;

	if (flags & ~(uint32_t)KNOWN_FLAGS) {
		say("vkgdr_open: unknown flags %#x", flags);
		return NULL;
	}
	if (!find_device(device, flags, &found))
		return NULL;
	v = malloc(sizeof(*v));
	if (!v) {
		say_errno("vkgdr_open", ENOMEM);
		return NULL;
	}
	v->device = found;
	atomic_init(&v->users, 1);
	v->g = gdr_open();
	if (!v->g) {
		say("gdr_open: no backend works; GDRCOPY_ENABLE_LOGGING=1 in the environment makes it say why");
		free(v);
		return NULL;
	}
	return v;
}

void vkgdr_close(vkgdr_t v)
{
	if (v)
		drop(v);
}

/* All or nothing; call receives the step that failed. */
static int make(struct vkgdr *v, struct vkgdr_memory *m, const char **call)
{
	size_t whole;
	int err;

	*call = "gdr_mem_alloc";
	err = gdr_mem_alloc(v->g, v->device, m->size, 0, &m->mem);
	if (err)
		return err;
	*call = "gdr_mem_get_device_ptr";
	err = gdr_mem_get_device_ptr(v->g, m->mem, &m->device_ptr, &whole);
	if (err)
		goto free_mem;
	*call = "gdr_pin_buffer";
	err = gdr_pin_buffer(v->g, m->device_ptr, whole, 0, 0, &m->mh);
	if (err)
		goto free_mem;
	*call = "gdr_map";
	err = gdr_map(v->g, m->mh, &m->host_ptr, whole);
	if (!err)
		return 0;
	gdr_unpin_buffer(v->g, m->mh);
free_mem:
	gdr_mem_free(v->g, m->mem);
	return err;
}

vkgdr_memory_t vkgdr_memory_alloc(vkgdr_t v, size_t size, uint32_t flags)
{
	const char *call = "vkgdr_memory_alloc";
	struct vkgdr_memory *m;
	int err = EINVAL;

	if (!v || flags) {
		say_errno(call, err);
		return NULL;
	}
	m = malloc(sizeof(*m));
	if (!m) {
		say_errno(call, ENOMEM);
		return NULL;
	}
	m->owner = v;
	m->size = size;
	err = make(v, m, &call);
	if (err) {
		say_errno(call, err);
		free(m);
		return NULL;
	}
	atomic_fetch_add(&v->users, 1);
	return m;
}

void vkgdr_memory_free(vkgdr_memory_t m)
{
	if (!m)
		return;
	gdr_unpin_buffer(m->owner->g, m->mh);
	gdr_mem_free(m->owner->g, m->mem);
	drop(m->owner);
	free(m);
}

void *vkgdr_memory_get_host_ptr(vkgdr_memory_t m)
{
	return m->host_ptr;
}

CUdeviceptr vkgdr_memory_get_device_ptr(vkgdr_memory_t m)
{
	return m->device_ptr;
}

size_t vkgdr_memory_get_size(vkgdr_memory_t m)
{
	return m->size;
}

bool vkgdr_memory_is_coherent(vkgdr_memory_t m)
{
	(void)m;
	return true;
}

size_t vkgdr_memory_get_non_coherent_atom_size(vkgdr_memory_t m)
{
	(void)m;
	return 1;
}

/* Orders the CPU's loads and stores, write-combined ones too, as a device sees them. */
static void fence(void)
{
#if defined(__aarch64__)
	__asm__ __volatile__("dmb osh" ::: "memory");
#elif defined(__x86_64__)
	__asm__ __volatile__("mfence" ::: "memory");
#else
	__sync_synchronize();
#endif
}

void vkgdr_memory_flush(vkgdr_memory_t m, size_t offset, size_t size)
{
	(void)m, (void)offset, (void)size;
	fence();
}

void vkgdr_memory_invalidate(vkgdr_memory_t m, size_t offset, size_t size)
{
	(void)m, (void)offset, (void)size;
	fence();
}
