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
#include <unistd.h>

typedef int (*ioctl_fn)(int fd, unsigned long request, ...);
typedef int (*export_fn)(void *handle, unsigned long long addr, size_t size,
			 int type, unsigned long long flags);

#define DMA_BUF_FD 1		/* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */

/* The request of open-gpu-kernel-modules: NV_ESC_EXPORT_TO_DMABUF_FD. */
#define EXPORT_MAGIC 'F'
#define EXPORT_NR 217

/*
 * An ELF note that each copy of the library has: where its gdr_watch_export lies, counted from
 * the note's last word. slot.go looks for it. A type of another number is another contract.
 */
__asm__(".pushsection .note.gdrapi, \"a\", %note\n"
	".balign 4\n"
	".long 7, 8, 2\n"
	".asciz \"gdrapi\"\n"
	".balign 4\n"
	".quad gdr_watch_export - .\n"
	".popsection\n");

struct gdr_watched gdr_watched;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* All under lock. */
static struct gdr_watch_slot slot;	/* changes only while nobody watches */
static unsigned int watchers;	/* threads */
static ioctl_fn before;		/* to put back */

/*
 * Requests go to forward, which is never our function. A tool's function there may have been
 * put over ours, and call it. So after a watch forward is what a request last went to
 * without a way back to us.
 */
static _Atomic(ioctl_fn) forward, no_way_back;
static _Atomic(ioctl_fn) c_library;	/* its ioctl */

/* Not NULL while this thread watches. */
static __thread struct gdr_watch *watching __attribute__((tls_model("initial-exec")));
/* While this thread is in forward. */
static __thread enum { OUTSIDE, FORWARDING, CAME_BACK } state __attribute__((tls_model("initial-exec")));

static void note(struct gdr_watch *w, unsigned long request, const void *arg)
{
	if (_IOC_TYPE(request) != EXPORT_MAGIC || _IOC_NR(request) != EXPORT_NR || !arg)
		return;
	if (w->requests++)
		return;
	w->size = _IOC_SIZE(request);
	memcpy(w->head, arg, w->size < sizeof(w->head) ? w->size : sizeof(w->head));
}

static int hook(int fd, unsigned long request, ...)
{
	va_list ap;
	ioctl_fn next;
	void *arg;
	int rc;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (state != OUTSIDE) {
		state = CAME_BACK;
		return atomic_load_explicit(&c_library, memory_order_acquire)(fd, request, arg);
	}
	if (watching)
		note(watching, request, arg);
	state = FORWARDING;
	next = atomic_load_explicit(&forward, memory_order_acquire);
	rc = next(fd, request, arg);
	if (state == FORWARDING)
		atomic_store_explicit(&no_way_back, next, memory_order_relaxed);
	state = OUTSIDE;
	return rc;
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

/* Returns 0, or ENOTSUP with nothing changed. */
static int put_hook(void)
{
	ioctl_fn now = atomic_load(in_slot());

	if (now == hook && !watchers)
		before = atomic_load(&forward);	/* a tool that saved ours has put it back */
	if (now != hook && protect(PROT_READ | PROT_WRITE))
		return ENOTSUP;
	while (now != hook) {
		bool unbound = (uintptr_t)now - slot.low < slot.high - slot.low;
		ioctl_fn c = atomic_load(&c_library);

		atomic_store(&forward, unbound ? c : now);
		if (unbound || now == c)
			atomic_store(&no_way_back, c);	/* the tool that it was last may be gone */
		before = now;
		if (atomic_compare_exchange_strong(in_slot(), &now, hook))
			break;
	}
	watchers++;
	return 0;
}

/* Changes nothing if somebody else has changed the slot since. */
static void take_hook(void)
{
	ioctl_fn ours = hook;

	if (--watchers)
		return;
	if (atomic_load(in_slot()) == hook && !protect(PROT_READ | PROT_WRITE))
		atomic_compare_exchange_strong(in_slot(), &ours, before);
	protect(PROT_READ);
	atomic_store(&forward, atomic_load(&no_way_back));
}

static int begin(const struct gdr_watch_slot *s)
{
	int rc = ENOTSUP;

	pthread_mutex_lock(&lock);
	if (!watchers || s->at == slot.at) {
		slot = *s;
		rc = put_hook();
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

static void end(void)
{
	pthread_mutex_lock(&lock);
	take_hook();
	pthread_mutex_unlock(&lock);
}

/* The loader's answer: a tool may have changed our own slot of ioctl, too. */
static void find_c_library(void)
{
	void *found;

	if (atomic_load(&c_library))
		return;
	found = dlsym(RTLD_DEFAULT, "ioctl");
	found = found ? found : (void *)ioctl;
	atomic_store(&no_way_back, found);
	atomic_store(&c_library, found);
}

int gdr_watch_export(const struct gdr_watch_slot *s, void *export, uint64_t addr, uint64_t size,
		     struct gdr_watch *w)
{
	struct gdr_watch *outer = watching;

	memset(w, 0, sizeof(*w));
	w->fd = -1;
	find_c_library();
	if (begin(s))
		return ENOTSUP;
	watching = w;
	state = OUTSIDE;	/* a handler may have left forward by siglongjmp */
	w->result = ((export_fn)export)(&w->fd, addr, size, DMA_BUF_FD, 0);
	watching = outer;
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
