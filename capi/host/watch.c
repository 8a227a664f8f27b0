// SPDX-License-Identifier: MIT
#define _GNU_SOURCE
#include "watch.h"

#include <dlfcn.h>
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

/* Where a libcuda keeps the address of ioctl. */
struct slot {
	const void *export;	/* what it was looked up for; NULL: not yet */
	_Atomic(ioctl_fn) *at;	/* NULL: there is none */
	int rank;		/* of the library: see rank_of */
	bool read_only;		/* the loader made its page so */
	uintptr_t low, high;	/* the library */
};

typedef int (*watch_fn)(void *export, uint64_t addr, uint64_t size, struct gdr_watch *w);

/*
 * An ELF note that each copy of the library has: where its gdr_watch_export lies, counted from
 * the note's last word. A type of another number is another contract.
 */
__asm__(".pushsection .note.gdrapi, \"a\", %note\n"
	".balign 4\n"
	"gdr_watch_note:\n"
	".long 7, 8, 1\n"
	".asciz \"gdrapi\"\n"
	".balign 4\n"
	".quad gdr_watch_export - .\n"
	".popsection\n");

extern const char gdr_watch_note[];

enum { NOTE_HEAD = 20, NOTE_SIZE = 28 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* All under lock. */
static struct slot slot;	/* changes only while nobody watches */
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

/* What a library's dynamic section says. NULL and 0 where it does not say it. */
struct dynamic {
	const ElfW(Rela) *rela;	/* functions that are bound at their first call */
	size_t bytes;
	const ElfW(Sym) *symbols;
	const char *names, *soname;
};

/* Where that section is read-only, the loader leaves its addresses as the file has them. */
static const void *address(const struct dl_phdr_info *info, uintptr_t addr)
{
	if (!holds(info, addr))
		addr += info->dlpi_addr;
	return holds(info, addr) ? (const void *)addr : NULL;
}

static struct dynamic dynamic_of(const struct dl_phdr_info *info)
{
	const ElfW(Phdr) *section = segment(info, PT_DYNAMIC);
	struct dynamic is = { 0 };
	size_t soname = 0;

	if (!section)
		return is;
	for (const ElfW(Dyn) *d = (void *)(info->dlpi_addr + section->p_vaddr); d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_JMPREL:
			is.rela = address(info, d->d_un.d_ptr);
			break;
		case DT_PLTRELSZ:
			is.bytes = d->d_un.d_val;
			break;
		case DT_SYMTAB:
			is.symbols = address(info, d->d_un.d_ptr);
			break;
		case DT_STRTAB:
			is.names = address(info, d->d_un.d_ptr);
			break;
		case DT_SONAME:
			soname = d->d_un.d_val;
			break;
		}
	}
	if (is.names && soname)
		is.soname = is.names + soname;
	return is;
}

/* The only slot of ioctl. */
static void *ioctl_slot(const struct dl_phdr_info *info, const struct dynamic *is)
{
	void *found = NULL;

	if (!is->rela || !is->symbols || !is->names)
		return NULL;
	for (size_t i = 0; i < is->bytes / sizeof(*is->rela); i++) {
		const ElfW(Rela) *r = &is->rela[i];

		if (ELF64_R_TYPE(r->r_info) != JUMP_SLOT ||
		    strcmp(is->names + is->symbols[ELF64_R_SYM(r->r_info)].st_name, "ioctl"))
			continue;
		if (found)
			return NULL;
		found = (void *)(info->dlpi_addr + r->r_offset);
	}
	return found;
}

/*
 * How surely a library is the libcuda that export ends in. Some tools put a function of
 * their own before libcuda's: export may lie in a library of another name.
 */
static int rank_of(const struct dl_phdr_info *info, const struct dynamic *is, const void *export)
{
	bool named = is->soname && !strncmp(is->soname, "libcuda.so", strlen("libcuda.so"));

	return 2 * named + holds(info, (uintptr_t)export);
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
	const struct dynamic is = dynamic_of(info);
	struct slot *s = arg;
	int rank = rank_of(info, &is, s->export);
	void *at = rank > s->rank ? ioctl_slot(info, &is) : NULL;

	(void)size;
	if (!at)
		return 0;
	*s = (struct slot){
		.export = s->export, .at = at, .rank = rank,
		.read_only = in_relro(info, at), .low = UINTPTR_MAX,
	};
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + p->p_vaddr;

		if (p->p_type != PT_LOAD)
			continue;
		s->low = start < s->low ? start : s->low;
		s->high = start + p->p_memsz > s->high ? start + p->p_memsz : s->high;
	}
	return 0;
}

static int protect(int prot)
{
	uintptr_t page = sysconf(_SC_PAGESIZE);

	if (!slot.read_only)
		return 0;
	return mprotect((void *)((uintptr_t)slot.at & -page), page, prot);
}

/* Returns 0, or ENOTSUP with nothing changed. */
static int put_hook(void)
{
	ioctl_fn now;

	if (!slot.at)
		return ENOTSUP;
	now = atomic_load(slot.at);
	if (now == hook && !watchers)
		before = atomic_load(&forward);	/* a tool that saved ours has put it back */
	if (now != hook && protect(PROT_READ | PROT_WRITE))
		return ENOTSUP;
	while (now != hook) {
		bool unbound = (uintptr_t)now - slot.low < slot.high - slot.low;

		atomic_store(&forward, unbound ? atomic_load(&c_library) : now);
		before = now;
		if (atomic_compare_exchange_strong(slot.at, &now, hook))
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
	if (atomic_load(slot.at) == hook && !protect(PROT_READ | PROT_WRITE))
		atomic_compare_exchange_strong(slot.at, &ours, before);
	protect(PROT_READ);
	atomic_store(&forward, atomic_load(&no_way_back));
}

static int begin(const void *export)
{
	struct slot found = { .export = export };
	int rc = 0;

	pthread_mutex_lock(&lock);
	if (slot.export != export) {
		pthread_mutex_unlock(&lock);
		dl_iterate_phdr(look_in, &found);
		pthread_mutex_lock(&lock);
		if (!watchers || found.at == slot.at)
			slot = found;
		else
			rc = ENOTSUP;
	}
	if (!rc)
		rc = put_hook();
	pthread_mutex_unlock(&lock);
	return rc;
}

static void end(void)
{
	pthread_mutex_lock(&lock);
	take_hook();
	pthread_mutex_unlock(&lock);
}

static int find_copy(struct dl_phdr_info *info, size_t size, void *arg)
{
	watch_fn *first = arg;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		const char *note = (const char *)(info->dlpi_addr + p->p_vaddr);

		if (p->p_type != PT_NOTE)
			continue;
		for (size_t at = 0; at + NOTE_SIZE <= p->p_memsz; at += 4, note += 4) {
			int64_t distance;

			if (!holds(info, (uintptr_t)note + NOTE_SIZE - 1) || memcmp(note, gdr_watch_note, NOTE_HEAD))
				continue;
			memcpy(&distance, note + NOTE_HEAD, sizeof(distance));
			*first = (watch_fn)(note + NOTE_HEAD + distance);
			return 1;
		}
	}
	return 0;
}

/* The copy of the library that was loaded first watches for all of them. */
static watch_fn first_copy(void)
{
	static _Atomic(watch_fn) known;
	watch_fn first = atomic_load(&known);

	if (!first) {
		first = gdr_watch_export;
		dl_iterate_phdr(find_copy, &first);
		atomic_store(&known, first);
	}
	return first;
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

int gdr_watch_export(void *export, uint64_t addr, uint64_t size, struct gdr_watch *w)
{
	struct gdr_watch *outer = watching;
	watch_fn first = first_copy();

	if (first != gdr_watch_export)
		return first(export, addr, size, w);
	memset(w, 0, sizeof(*w));
	w->fd = -1;
	find_c_library();
	if (begin(export))
		return ENOTSUP;
	watching = w;
	state = OUTSIDE;	/* a handler may have left forward by siglongjmp */
	w->result = ((export_fn)export)(&w->fd, addr, size, DMA_BUF_FD, 0);
	watching = outer;
	end();
	return 0;
}
