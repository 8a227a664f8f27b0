// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "watch.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
#define JUMP_SLOT R_X86_64_JUMP_SLOT
#elif defined(__aarch64__)
#define JUMP_SLOT R_AARCH64_JUMP_SLOT
#elif defined(__powerpc64__) && _CALL_ELF == 2
#define JUMP_SLOT R_PPC64_JMP_SLOT
#else
#define JUMP_SLOT 0	/* no machine's: nothing is watched */
#endif

typedef int (*ioctl_fn)(int fd, unsigned long request, ...);
typedef int (*export_fn)(void *handle, unsigned long long addr, size_t size,
			 int type, unsigned long long flags);

#define DMA_BUF_FD 1		/* CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD */

/*
 * The request of open-gpu-kernel-modules: NV_ESC_EXPORT_TO_DMABUF_FD. Its struct has 128
 * objects. Since driver 570 it has two bytes more before them.
 */
#define EXPORT_MAGIC 'F'
#define EXPORT_NR 217
#define EXPORT_OBJECTS 128

struct export_head {
	int32_t fd;
	uint32_t client;
	uint32_t total_objects;
	uint32_t num_objects;
	uint32_t index;
	uint32_t pad;
	uint64_t total_size;
};

struct export_v535 {
	struct export_head head;
	uint32_t object[EXPORT_OBJECTS];
	uint64_t offset[EXPORT_OBJECTS];
	uint64_t size[EXPORT_OBJECTS];
	uint32_t status;
};

struct export_v570 {
	struct export_head head;
	uint8_t mapping_type;
	uint8_t allow_mmap;
	uint32_t object[EXPORT_OBJECTS];
	uint64_t offset[EXPORT_OBJECTS];
	uint64_t size[EXPORT_OBJECTS];
	uint32_t status;
};

_Static_assert(sizeof(struct export_v535) == 2600, "535 to 565");
_Static_assert(sizeof(struct export_v570) == 2608, "570 to 595");

/* Where libcuda keeps the address of ioctl. */
struct slot {
	const void *export;	/* what it was looked up for; NULL: not yet */
	_Atomic(ioctl_fn) *at;	/* NULL: there is none */
	bool read_only;		/* the loader made its page so */
	uintptr_t low, high;	/* libcuda itself */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot slot;	/* under lock */
static _Atomic(ioctl_fn) forward;

/* Not NULL while this thread watches. */
static __thread struct gdr_watch *watching __attribute__((tls_model("initial-exec")));

static void note(struct gdr_watch *w, unsigned long request, const void *arg)
{
	const struct export_v535 *old = arg;
	const struct export_v570 *new = arg;

	if (_IOC_TYPE(request) != EXPORT_MAGIC || _IOC_NR(request) != EXPORT_NR || !arg)
		return;
	if (w->requests++)
		return;
	w->size = _IOC_SIZE(request);
	if (w->size == sizeof(*new) && new->head.num_objects) {
		w->client = new->head.client;
		w->object = new->object[0];
		w->offset = new->offset[0];
	} else if (w->size == sizeof(*old) && old->head.num_objects) {
		w->client = old->head.client;
		w->object = old->object[0];
		w->offset = old->offset[0];
	}
}

static int hook(int fd, unsigned long request, ...)
{
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	if (watching)
		note(watching, request, arg);
	return atomic_load_explicit(&forward, memory_order_acquire)(fd, request, arg);
}

static const ElfW(Phdr) *segment(const struct dl_phdr_info *info, ElfW(Word) type)
{
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == type)
			return &info->dlpi_phdr[i];
	return NULL;
}

static bool holds(const struct dl_phdr_info *info, uintptr_t addr)
{
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];

		if (p->p_type == PT_LOAD && addr - (info->dlpi_addr + p->p_vaddr) < p->p_memsz)
			return true;
	}
	return false;
}

/* The only slot of ioctl in the table of functions that are bound at their first call. */
static void *ioctl_slot(const struct dl_phdr_info *info)
{
	const ElfW(Phdr) *dynamic = segment(info, PT_DYNAMIC);
	const ElfW(Rela) *rela = NULL;
	const ElfW(Sym) *symbols = NULL;
	const char *names = NULL;
	size_t bytes = 0;
	void *found = NULL;

	if (!dynamic)
		return NULL;
	for (const ElfW(Dyn) *d = (void *)(info->dlpi_addr + dynamic->p_vaddr); d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_JMPREL:
			rela = (const void *)d->d_un.d_ptr;
			break;
		case DT_PLTRELSZ:
			bytes = d->d_un.d_val;
			break;
		case DT_SYMTAB:
			symbols = (const void *)d->d_un.d_ptr;
			break;
		case DT_STRTAB:
			names = (const void *)d->d_un.d_ptr;
			break;
		}
	}
	if (!rela || !symbols || !names)
		return NULL;
	for (size_t i = 0; i < bytes / sizeof(*rela); i++) {
		const ElfW(Sym) *sym = &symbols[ELF64_R_SYM(rela[i].r_info)];

		if (ELF64_R_TYPE(rela[i].r_info) != JUMP_SLOT || strcmp(names + sym->st_name, "ioctl"))
			continue;
		if (found)
			return NULL;
		found = (void *)(info->dlpi_addr + rela[i].r_offset);
	}
	return found;
}

/* The loader makes whole pages read-only. */
static bool in_relro(const struct dl_phdr_info *info, const void *at)
{
	const ElfW(Phdr) *relro = segment(info, PT_GNU_RELRO);
	uintptr_t page = sysconf(_SC_PAGESIZE);
	uintptr_t low, high;

	if (!relro)
		return false;
	low = (info->dlpi_addr + relro->p_vaddr) & -page;
	high = (info->dlpi_addr + relro->p_vaddr + relro->p_memsz) & -page;
	return (uintptr_t)at >= low && (uintptr_t)at < high;
}

static int look_in(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct slot *s = arg;
	void *at;

	(void)size;
	if (!holds(info, (uintptr_t)s->export))
		return 0;
	at = ioctl_slot(info);
	s->at = at;
	if (!at)
		return 1;
	s->read_only = in_relro(info, at);
	s->low = UINTPTR_MAX;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + p->p_vaddr;

		if (p->p_type != PT_LOAD)
			continue;
		s->low = start < s->low ? start : s->low;
		s->high = start + p->p_memsz > s->high ? start + p->p_memsz : s->high;
	}
	return 1;
}

static int protect(int prot)
{
	uintptr_t page = sysconf(_SC_PAGESIZE);

	if (!slot.read_only)
		return 0;
	return mprotect((void *)((uintptr_t)slot.at & -page), page, prot);
}

/* Returns 0 with *before set, or ENOTSUP with nothing changed. */
static int put_hook(ioctl_fn *before)
{
	if (!slot.at || protect(PROT_READ | PROT_WRITE))
		return ENOTSUP;
	*before = atomic_load(slot.at);
	atomic_store(&forward, (uintptr_t)*before - slot.low < slot.high - slot.low ? (ioctl_fn)ioctl : *before);
	atomic_store(slot.at, hook);
	return 0;
}

/* Changes nothing if somebody else has changed the slot since. */
static void take_hook(ioctl_fn before)
{
	ioctl_fn ours = hook;

	atomic_compare_exchange_strong(slot.at, &ours, before);
	protect(PROT_READ);
}

int gdr_watch_export(void *export, uint64_t addr, uint64_t size, struct gdr_watch *w)
{
	ioctl_fn before;
	int rc;

	memset(w, 0, sizeof(*w));
	w->fd = -1;
	pthread_mutex_lock(&lock);
	if (slot.export != export) {
		slot = (struct slot){ .export = export };
		dl_iterate_phdr(look_in, &slot);
	}
	rc = put_hook(&before);
	if (!rc) {
		watching = w;
		w->result = ((export_fn)export)(&w->fd, addr, size, DMA_BUF_FD, 0);
		watching = NULL;
		take_hook(before);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}
