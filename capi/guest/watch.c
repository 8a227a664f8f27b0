// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "watch.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int (*ioctl_fn)(int fd, unsigned long request, ...);
typedef int (*export_fn)(void *handle, unsigned long long addr, size_t size,
			 int type, unsigned long long flags);

#define DMA_BUF_FD 1		/* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */

/* The request of open-gpu-kernel-modules: NV_ESC_EXPORT_TO_DMABUF_FD. */
#define EXPORT_MAGIC 'F'
#define EXPORT_NR 217

#define WATCHERS_MAX 256u

struct gdr_watched gdr_watched;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* All under lock. */
static struct gdr_watch_slot slot;	/* changes only while nobody watches */
static unsigned int watchers;
static ioctl_fn first;	/* that requests went to in the first watch */
static ioctl_fn before;	/* in the slot, to put back */

static _Atomic(ioctl_fn) forward;
static _Atomic(ioctl_fn) c_library;	/* its ioctl */

/* The threads that watch. Each takes and leaves a place under lock. */
static struct place {
	_Atomic pid_t thread;	/* 0: free */
	struct gdr_watch *watch;
} places[WATCHERS_MAX];

static struct place *find_place(pid_t thread)
{
	for (size_t i = 0; i < WATCHERS_MAX; i++)
		if (atomic_load(&places[i].thread) == thread)
			return &places[i];
	return NULL;
}

static pid_t self(void)
{
	return (pid_t)syscall(SYS_gettid);
}

static void note(struct gdr_watch *w, unsigned long request, const void *arg)
{
	if (w->requests++)
		return;
	w->size = _IOC_SIZE(request);
	memcpy(w->head, arg, w->size < sizeof(w->head) ? w->size : sizeof(w->head));
}

static int hook(int fd, unsigned long request, ...)
{
	struct place *place;
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (_IOC_TYPE(request) == EXPORT_MAGIC && _IOC_NR(request) == EXPORT_NR && arg) {
		place = find_place(self());
		if (place)
			note(place->watch, request, arg);
	}
	return atomic_load(&forward)(fd, request, arg);
}

static _Atomic(ioctl_fn) *in_slot(void)
{
	return (_Atomic(ioctl_fn) *)slot.at;
}

static int protect(int prot)
{
	uintptr_t page = sysconf(_SC_PAGESIZE);

	if (!slot.read_only)
		return 0;
	return mprotect((void *)(slot.at & -page), page, prot);
}

/*
 * What requests go to if the slot holds now. NULL: a tool's function that came after our
 * first watch. It may have been put over ours, and call it: they would call each other for ever.
 */
static ioctl_fn choose_forward(ioctl_fn now)
{
	bool unbound = (uintptr_t)now - slot.low < slot.high - slot.low;
	ioctl_fn c = atomic_load(&c_library), next = unbound ? c : now;

	if (!first)
		first = next;
	return next == c || next == first ? next : NULL;
}

/* Returns 0, or ENOTSUP with nothing changed. */
static int put_hook(void)
{
	ioctl_fn now = atomic_load(in_slot()), next;

	if (now == hook)	/* for another thread, or a tool has put it back */
		return 0;
	next = choose_forward(now);
	if (!next || protect(PROT_READ | PROT_WRITE))
		return ENOTSUP;
	before = now;
	atomic_store(&forward, next);
	if (atomic_compare_exchange_strong(in_slot(), &now, hook))
		return 0;
	if (!watchers)
		protect(PROT_READ);
	return ENOTSUP;
}

/* Changes nothing if somebody else has changed the slot since. */
static void take_hook(void)
{
	ioctl_fn ours = hook;

	if (atomic_load(in_slot()) == hook && !protect(PROT_READ | PROT_WRITE))
		atomic_compare_exchange_strong(in_slot(), &ours, before);
	protect(PROT_READ);
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

/* A thread whose handler left an export by siglongjmp has its place still. */
static int begin(const struct gdr_watch_slot *s, struct gdr_watch *w)
{
	struct place *place;
	int rc = ENOTSUP;

	pthread_mutex_lock(&lock);
	place = find_place(self());
	if (!place)
		place = find_place(0);
	if (place && (!watchers || s->at == slot.at)) {
		slot = *s;
		rc = put_hook();
	}
	if (!rc) {
		watchers += !atomic_load(&place->thread);
		place->watch = w;
		atomic_store(&place->thread, self());
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

static void end(void)
{
	struct place *place;

	pthread_mutex_lock(&lock);
	place = find_place(self());
	if (place) {
		atomic_store(&place->thread, 0);
		if (!--watchers)
			take_hook();
	}
	pthread_mutex_unlock(&lock);
}

int gdr_watch_export(const struct gdr_watch_slot *s, void *export, uint64_t addr, uint64_t size,
		     struct gdr_watch *w)
{
	memset(w, 0, sizeof(*w));
	w->fd = -1;
	find_c_library();
	if (begin(s, w))
		return ENOTSUP;
	w->result = ((export_fn)export)(&w->fd, addr, size, DMA_BUF_FD, 0);
	end();
	return 0;
}

/* What the loader's lock is held for. */
struct listing {
	struct gdr_library *list;
	size_t room, count;
};

struct part {
	uintptr_t addr;
	void *to;
	size_t bytes;
};

static int add_library(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct listing *all = arg;

	(void)size;
	if (all->count < all->room)
		all->list[all->count] = (struct gdr_library){
			info->dlpi_addr, (uintptr_t)info->dlpi_phdr, info->dlpi_phnum,
		};
	all->count++;
	return 0;
}

size_t gdr_list_libraries(struct gdr_library *list, size_t room)
{
	struct listing all = { list, room, 0 };

	dl_iterate_phdr(add_library, &all);
	return all.count;
}

static int copy_part(struct dl_phdr_info *info, size_t size, void *arg)
{
	const struct part *part = arg;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		size_t before = part->addr - info->dlpi_addr - p->p_vaddr;

		if (p->p_type != PT_LOAD || before >= p->p_memsz || part->bytes > p->p_memsz - before)
			continue;
		memcpy(part->to, (const void *)part->addr, part->bytes);
		return 1;
	}
	return 0;
}

bool gdr_read_library(uintptr_t addr, void *to, size_t bytes)
{
	return dl_iterate_phdr(copy_part, &(struct part){ addr, to, bytes });
}
