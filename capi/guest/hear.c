// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "hear.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "heard.h"

typedef int (*ioctl_fn)(int fd, unsigned long request, ...);
typedef int (*export_fn)(void *handle, unsigned long long addr, size_t size,
			 int type, unsigned long long flags);

#define DMA_BUF_FD 1		/* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */
#define WATCHERS_MAX 256u

/* A call of the slot's function, by which we find out whether it reaches ours. */
struct sign {
	ioctl_fn whose;
	bool answered;
};

#define SIGN _IOC(_IOC_READ | _IOC_WRITE, 'g', 0x9d, sizeof(struct sign))

struct gdr_export gdr_export;

static struct gdr_slot slot;		/* set once, before our function is in it */
static _Atomic pid_t putting;		/* the process that puts it there, or has */
static _Atomic bool is_put;
static _Atomic unsigned int driver;	/* GDR_HEAR_* */
static _Atomic(ioctl_fn) forward;
static _Atomic(ioctl_fn) c_library;	/* its ioctl */

/*
 * The threads that watch. A thread that leaves an export by siglongjmp keeps its place, for its
 * next export; what it asks for until then is noted here, and nobody reads it.
 */
static struct place {
	_Atomic pid_t thread;	/* 0: free */
	struct gdr_watch seen;
} places[WATCHERS_MAX];

static pid_t self(void)
{
	return (pid_t)syscall(SYS_gettid);
}

static struct place *find_place(pid_t thread)
{
	for (size_t i = 0; i < WATCHERS_MAX; i++)
		if (atomic_load(&places[i].thread) == thread)
			return &places[i];
	return NULL;
}

static struct place *take_place(void)
{
	struct place *place = find_place(self());
	pid_t none;

	while (!place) {
		place = find_place(0);
		none = 0;
		if (!place || atomic_compare_exchange_strong(&place->thread, &none, self()))
			return place;
		place = NULL;
	}
	return place;
}

static uint32_t word(const void *arg, size_t at)
{
	uint32_t v;

	memcpy(&v, (const char *)arg + at, sizeof(v));
	return v;
}

static uint64_t words(const void *arg, size_t at)
{
	uint64_t v;

	memcpy(&v, (const char *)arg + at, sizeof(v));
	return v;
}

/* 217, NV_ESC_EXPORT_TO_DMABUF_FD. Since driver 570 it has two bytes more before its 128 objects. */
static void note(struct gdr_watch *w, unsigned long request, const void *arg)
{
	size_t objects = _IOC_SIZE(request) == 2600 ? 32 : _IOC_SIZE(request) == 2608 ? 36 : 0;

	if (w->requests++)
		return;
	w->size = _IOC_SIZE(request);
	if (!objects || !word(arg, 12))
		return;
	w->client = word(arg, 4);
	w->object = word(arg, objects);
	w->offset = words(arg, (objects + 4 * 128 + 7) & -8ul);
}

/* Requests of RM's, and what of them is looked at. */
enum {
	RM_FREE = 0x29, RM_CONTROL = 0x2a, RM_ALLOC = 0x2b, RM_VID_HEAP = 0x4a, RM_EXPORT_DMABUF = 217,
	VID_HEAP_FREE = 3, CLASS_MEMORY = 0x40, CLASS_CLIENT = 0x41, CLASS_DEVICE = 0x80, GET_HANDLE_INFO = 0xd02, HANDLE_CLASS = 2,
};

#define UVM_MAP 33
#define UVM_FREE 34

/*
 * Requests of UVM's, whose numbers have no size. Most begin with base and length. From driver 550 on
 * structs with a list of GPUs have room for 256, before for 32.
 */
static const struct uvm {
	unsigned short request, what;
	short uuid;		/* offset; -1: none */
	unsigned short status, status_550;
} uvm[] = {
	{ 26, GDR_TOLD_UNMAP, 0, 16, 16 },	/* a GPU's address space goes */
	{ 30, GDR_TOLD_LOSS, -1, 32, 32 },	/* peer access goes */
	{ UVM_MAP, GDR_TOLD_MAP, 24, 1196, 9260 },
	{ UVM_FREE, GDR_TOLD_FREE, -1, 16, 16 },
	{ 38, GDR_TOLD_UNMAP, 0, 16, 16 },	/* a GPU goes */
	{ 65, GDR_TOLD_RANGE, -1, 32, 32 },	/* dynamic parallelism's region */
	{ 66, GDR_TOLD_UNMAP, 16, 32, 32 },
	{ 68, GDR_TOLD_RANGE, -1, 1176, 9240 },	/* a semaphore pool */
	{ 73, GDR_TOLD_RANGE, -1, 16, 16 },	/* an external range */
	{ 74, GDR_TOLD_LOSS, -1, 32, 32 },	/* sparse */
	{ 78, GDR_TOLD_RANGE, -1, 52, 52 },	/* device P2P */
};

static bool since(unsigned int version)
{
	return atomic_load(&driver) & version;
}

/* The class of an object of a client's, or 0. */
static uint32_t class_of(int fd, uint32_t client, uint32_t object)
{
	struct {
		uint32_t object, index;
		uint64_t result;
	} info = { .object = object, .index = HANDLE_CLASS };
	struct {
		uint32_t client, object, command, flags;
		uint64_t params;
		uint32_t size, status;
	} control = { client, client, GET_HANDLE_INFO, 0, (uintptr_t)&info, sizeof(info), 0 };

	if (atomic_load(&forward)(fd, _IOC(_IOC_READ | _IOC_WRITE, 'F', RM_CONTROL, sizeof(control)), &control))
		return 0;
	return control.status ? 0 : (uint32_t)info.result;
}

/*
 * An object is freed, with all that is below it. Memory is below a device, and devices are
 * below the client. Other children of the client come and go all the time.
 */
static void decode_free(struct gdr_told *t, int fd, const void *arg, size_t at)
{
	uint32_t root = word(arg, 0), parent = word(arg, 4), object = word(arg, at);
	uint32_t class = object != root && parent == root ? class_of(fd, root, object) : 1;

	t->what = GDR_TOLD_OBJECT;
	t->is.client = root;
	t->is.object = object == root || !class || class == CLASS_DEVICE ? 0 : object;
}

static bool is_rm(unsigned long request, unsigned int nr, size_t size)
{
	return _IOC_TYPE(request) == 'F' && _IOC_NR(request) == nr && _IOC_SIZE(request) >= size;
}

static size_t decode_rm(struct gdr_told *t, int fd, unsigned long request, const void *arg)
{
	if (is_rm(request, RM_FREE, 16)) {
		decode_free(t, fd, arg, 8);
		return 12;
	}
	if (is_rm(request, RM_VID_HEAP, 48) && word(arg, 8) == VID_HEAP_FREE) {
		decode_free(t, fd, arg, 44);
		return 20;
	}
	if (!is_rm(request, RM_ALLOC, 48) || (word(arg, 12) != CLASS_MEMORY && word(arg, 12) != CLASS_CLIENT))
		return 0;
	t->what = word(arg, 12) == CLASS_MEMORY ? GDR_TOLD_MEMORY : GDR_TOLD_CLIENT;
	t->is.client = word(arg, 0);
	t->is.parent = word(arg, 4);
	return 40;
}

/* A map for more GPUs than one, or for none, is none that is known. */
static void decode_map(struct gdr_told *t, const void *arg, size_t status)
{
	if (words(arg, status - 20) != 1)
		t->what = GDR_TOLD_LOSS;
	t->is.offset = words(arg, 16);
	t->is.control = (int32_t)word(arg, status - 12);
	t->is.client = word(arg, status - 8);
	t->is.object = word(arg, status - 4);
}

static void decode_uvm(struct gdr_told *t, const struct uvm *u, const void *arg, size_t status)
{
	t->what = u->what;
	t->is.base = words(arg, 0);
	if (u->request != UVM_FREE || !since(GDR_HEAR_590))
		t->is.end = t->is.base + words(arg, 8);
	if (u->uuid >= 0)
		memcpy(t->is.uuid, (const char *)arg + u->uuid, sizeof(t->is.uuid));
	if (u->request == UVM_MAP)
		decode_map(t, arg, status);
	if (u->request < UVM_MAP || u->request == 38) {	/* no range, but a GPU's whole address space */
		t->is.base = 0;
		t->is.end = UINT64_MAX;
	}
}

/* What a request tells, and where its status is; 0: it tells nothing. */
static size_t decode(struct gdr_told *t, int fd, unsigned long request, const void *arg)
{
	size_t status = 0;

	*t = (struct gdr_told){ .since = 0 };
	if (_IOC_TYPE(request) == 'F')
		return decode_rm(t, fd, request, arg);
	for (size_t i = 0; i < sizeof(uvm) / sizeof(uvm[0]); i++) {
		if (uvm[i].request != request)
			continue;
		status = since(GDR_HEAR_550) ? uvm[i].status_550 : uvm[i].status;
		decode_uvm(t, &uvm[i], arg, status);
		if (request == UVM_FREE && since(GDR_HEAR_590))
			status = 8;
	}
	return status;
}

static int listen(int fd, unsigned long request, ...);

/* Whether the call was a sign of ours, which goes no further. */
static bool is_own_sign(unsigned long request, void *arg)
{
	struct sign *sign = arg;

	if (request != SIGN || sign->whose != listen)
		return false;
	sign->answered = true;
	return true;
}

static int tell(int fd, unsigned long request, void *arg)
{
	int result, error = errno;
	struct gdr_told t;
	size_t status = decode(&t, fd, request, arg);

	if (status)
		gdr_heard_before(&t);
	errno = error;
	result = atomic_load(&forward)(fd, request, arg);
	error = errno;
	if (status && t.what == GDR_TOLD_MEMORY)
		t.is.object = word(arg, 8);	/* the kernel may have chosen it */
	if (status)
		gdr_heard_after(&t, !result && !word(arg, status));
	errno = error;
	return result;
}

static int listen(int fd, unsigned long request, ...)
{
	struct place *place;
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (arg && fd == -1 && is_own_sign(request, arg))
		return 0;
	if (arg && is_rm(request, RM_EXPORT_DMABUF, 0)) {
		place = find_place(self());
		if (place)
			note(&place->seen, request, arg);
	} else if (arg && gdr_heard_listens()) {
		return tell(fd, request, arg);
	}
	return atomic_load(&forward)(fd, request, arg);
}

static _Atomic(ioctl_fn) *in_slot(void)
{
	return (_Atomic(ioctl_fn) *)slot.at;
}

/* The loader's answer: a tool may have changed our own slot of ioctl, too. */
static void find_c_library(void)
{
	void *found;

	if (atomic_load(&c_library))
		return;
	found = dlsym(RTLD_DEFAULT, "ioctl");
	atomic_store(&c_library, found ? (ioctl_fn)found : ioctl);
}

/* Whether the slot is as the loader leaves it: bound to the C library, or not bound. */
static bool is_loaders(ioctl_fn now)
{
	return now == atomic_load(&c_library) || (uintptr_t)now - slot.low < slot.high - slot.low;
}

/*
 * A build from before this function makes the page read-only again whenever it has watched. So the
 * page stays as it is, and the kernel writes to it.
 */
static bool write_read_only(ioctl_fn next)
{
	int fd = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return false;
	n = pwrite(fd, &next, sizeof(next), (off_t)slot.at);
	close(fd);
	return n == sizeof(next) && atomic_load(in_slot()) == next;
}

static bool put(void)
{
	ioctl_fn now = atomic_load(in_slot());

	if (now == listen)	/* this process's parent has put it there */
		return true;
	atomic_store(&forward, is_loaders(now) ? atomic_load(&c_library) : now);
	if (slot.read_only)
		return write_read_only(listen);
	return atomic_compare_exchange_strong(in_slot(), &now, listen);
}

/* Puts the function into the slot, once. A child whose parent was at it begins anew. */
static void put_once(const struct gdr_slot *s)
{
	pid_t me = getpid(), was = atomic_load(&putting);

	if (was == me || !atomic_compare_exchange_strong(&putting, &was, me))
		return;
	find_c_library();
	slot = *s;
	if (put())
		atomic_store(&is_put, true);
	else
		atomic_store(&putting, 0);
}

bool gdr_hears(void)
{
	struct sign sign = { .whose = listen };
	ioctl_fn now;

	if (!atomic_load(&is_put))
		return false;
	now = atomic_load(in_slot());
	if (now == listen)
		return true;
	if (is_loaders(now) && put()) {	/* it was being bound while we put it there */
		gdr_heard_reset();
		return true;
	}
	now(-1, SIGN, &sign);
	if (!sign.answered)
		gdr_heard_stop();
	return sign.answered;
}

bool gdr_hear(const struct gdr_slot *s, unsigned int layout)
{
	if (s->at && !atomic_load(&is_put))
		put_once(s);
	if (s->at != slot.at || !gdr_hears())
		return false;
	if (layout) {	/* else an open could not ask: what is known stays true */
		atomic_store(&driver, layout);
		gdr_heard_start();
	}
	return true;
}

int gdr_watch_export(uintptr_t export, uint64_t addr, uint64_t size, struct gdr_watch *w)
{
	struct place *place = gdr_hears() ? take_place() : NULL;

	*w = (struct gdr_watch){ .fd = -1 };
	if (!place)
		return ENOTSUP;
	place->seen = *w;
	w->result = ((export_fn)export)(&w->fd, addr, size, DMA_BUF_FD, 0);
	place->seen.result = w->result;
	place->seen.fd = w->fd;
	*w = place->seen;
	atomic_store(&place->thread, 0);
	return 0;
}
