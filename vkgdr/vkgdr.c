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

/* Memory that is to be treated as not coherent is flushed by lines of the CPU's cache. */
#define ATOM_SIZE 64

/* CUDA's driver and its three functions that are called here. */
struct cuda {
	void *library;
	int (*device_get)(CUdevice *device, int ordinal);
	int (*context_device)(CUdevice *device);
	int (*error_name)(int result, const char **name);
};

/* Lives until it is closed and its last memory is freed. */
struct vkgdr {
	gdr_t g;
	struct cuda cuda;
	CUdevice device;
	bool coherent;		/* false only where the caller asked to treat it so */
	atomic_size_t users;	/* the caller who opened it, and each memory */
};

/* Pinned and mapped while it lives. */
struct vkgdr_memory {
	struct vkgdr *owner;
	gdr_mem_t mem;
	gdr_mh_t mh;
	unsigned long device_ptr;
	void *host_ptr;
	size_t size;	/* as requested */
};

/* Why this thread's last vkgdr_open or vkgdr_memory_alloc failed; "" after a success. */
static _Thread_local char last_error[256] = "";

static void __attribute__((format(printf, 1, 2))) say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(last_error, sizeof(last_error), format, args);
	va_end(args);
}

/* CUDA's name for an errno, for programs that look for it; the second is vkgdr's own. */
static const char *error_name(int err)
{
	switch (err) {
	case ENOMEM:
		return " (CUDA_ERROR_OUT_OF_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY)";
	case ENODEV:
		return " (CUDA_ERROR_INVALID_DEVICE)";
	case ENOTSUP:
		return " (CUDA_ERROR_NOT_SUPPORTED)";
	default:
		return "";
	}
}

static void say_errno(const char *call, int err)
{
	say("%s: %s%s; with GDRCOPY_ENABLE_LOGGING=1 the log says why", call, strerror(err), error_name(err));
}

char *vkgdr_last_error(void)
{
	return last_error[0] ? strdup(last_error) : NULL;
}

static bool load_cuda(struct cuda *cuda)
{
	cuda->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!cuda->library) {
		const char *why = dlerror();

		say("%s; NVIDIA's driver has this library", why ? why : "libcuda.so.1 cannot be loaded");
		return false;
	}
	cuda->device_get = (int (*)(CUdevice *, int))dlsym(cuda->library, "cuDeviceGet");
	cuda->context_device = (int (*)(CUdevice *))dlsym(cuda->library, "cuCtxGetDevice");
	cuda->error_name = (int (*)(int, const char **))dlsym(cuda->library, "cuGetErrorName");
	if (cuda->device_get && cuda->context_device && cuda->error_name)
		return true;
	say("libcuda.so.1 lacks cuDeviceGet, cuCtxGetDevice or cuGetErrorName");
	dlclose(cuda->library);
	return false;
}

/* Whether a call of CUDA's succeeded; if not, its error's name is the reason. */
static bool succeeded(const struct cuda *cuda, const char *call, int result)
{
	const char *name = NULL;

	if (!result)
		return true;
	cuda->error_name(result, &name);	/* it leaves NULL for one that CUDA does not know */
	if (name)
		say("%s failed (%s)", call, name);
	else
		say("%s failed (unknown CUDA error %d)", call, result);
	return false;
}

/* The GPU to allocate on: @device, or that of the thread's current context. */
static bool find_device(const struct cuda *cuda, CUdevice device, uint32_t flags, CUdevice *found)
{
	if (flags & VKGDR_OPEN_CURRENT_CONTEXT_BIT)
		return succeeded(cuda, "cuCtxGetDevice", cuda->context_device(found));
	return succeeded(cuda, "cuDeviceGet", cuda->device_get(found, device));
}

static void drop(struct vkgdr *v)
{
	if (atomic_fetch_sub(&v->users, 1) > 1)
		return;
	gdr_close(v->g);
	dlclose(v->cuda.library);
	free(v);
}

vkgdr_t vkgdr_open(CUdevice device, uint32_t flags)
{
	struct vkgdr *v;

	last_error[0] = '\0';
	if (flags & ~(uint32_t)KNOWN_FLAGS) {
		say("vkgdr_open: unknown flags %#x", flags);
		return NULL;
	}
	v = calloc(1, sizeof(*v));
	if (!v) {
		say_errno("vkgdr_open", ENOMEM);
		return NULL;
	}
	atomic_init(&v->users, 1);
	v->coherent = !(flags & VKGDR_OPEN_FORCE_NON_COHERENT_BIT);
	if (!load_cuda(&v->cuda))
		goto free_v;
	if (!find_device(&v->cuda, device, flags, &v->device))
		goto close_cuda;
	v->g = gdr_open();
	if (v->g)
		return v;
	say_errno("gdr_open", errno);
close_cuda:
	dlclose(v->cuda.library);
free_v:
	free(v);
	return NULL;
}

void vkgdr_close(vkgdr_t v)
{
	if (v)
		drop(v);
}

/* Allocates, pins and maps, or nothing; call receives the step that failed. */
static int make(struct vkgdr *v, struct vkgdr_memory *m, const char **call)
{
	size_t whole;
	int err;

	*call = "gdr_mem_alloc";
	err = gdr_mem_alloc(v->g, v->device, m->size, 0, &m->mem);
	if (err == EINVAL && m->size)	/* larger than an address space */
		return ENOMEM;
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

/* As in vkgdr, the thread's current context must be one of the GPU. */
static bool has_context(const struct vkgdr *v)
{
	CUdevice current;

	if (!succeeded(&v->cuda, "cuCtxGetDevice", v->cuda.context_device(&current)))
		return false;
	if (current == v->device)
		return true;
	say("the current context is of device %d, vkgdr_open was given %d (CUDA_ERROR_INVALID_CONTEXT)",
	    (int)current, (int)v->device);
	return false;
}

vkgdr_memory_t vkgdr_memory_alloc(vkgdr_t v, size_t size, uint32_t flags)
{
	const char *call = "vkgdr_memory_alloc";
	struct vkgdr_memory *m;
	int err = EINVAL;

	last_error[0] = '\0';
	if (!v || flags) {
		say_errno(call, err);
		return NULL;
	}
	if (!has_context(v))
		return NULL;
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
	return m->owner->coherent;
}

size_t vkgdr_memory_non_coherent_atom_size(vkgdr_memory_t m)
{
	return m->owner->coherent ? 1 : ATOM_SIZE;
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
