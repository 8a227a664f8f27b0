/* SPDX-License-Identifier: MIT */
/*
 * sanity.h - what the cases of gdrcopy_sanity are made of.
 *
 * Each case runs in a process of its own, in which nothing has touched CUDA or
 * the library before. A check that fails ends that process and so the case.
 */
#ifndef SANITY_H
#define SANITY_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "cuda_dl.h"
#include "gdrapi.h"
#include "gdrapi_ext.h"

enum backend {
	BE_GDRDRV = 1,
	BE_DMABUF = 2,
	BE_RM = 4,
	BE_ALL = 7
};

/* How GPU memory was allocated. */
enum mem_kind {
	MEM_PLAIN,	/* cuMemAlloc */
	MEM_VMM,	/* cuMemCreate with a POSIX file descriptor handle */
	MEM_EXT,	/* gdr_mem_alloc */
	MEM_KINDS
};

/*
 * What a case knows. The runner fills in the first part from a probe; start()
 * fills in the rest, in the process that calls it.
 */
struct env {
	enum backend backend;
	bool persistent;	/* GDR_ATTR_USE_PERSISTENT_MAPPING */
	bool force_pcie;	/* GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE */
	int gpu;		/* -d */
	int gpus;
	size_t page;		/* the backend's */
	size_t host_page;

	struct cuda_dl cu;
	cu_ctx ctx;		/* current in the thread that called start */
	gdr_t g;
};

/* backends: where the case applies; elsewhere it is skipped because why_not. */
struct sanity_case {
	const char *name;
	void (*run)(struct env *e);
	int backends;
	const char *why_not;
};

/* The cases, by file; each list ends with name NULL. */
extern const struct sanity_case basic_cases[];
extern const struct sanity_case range_cases[];
extern const struct sanity_case query_cases[];
extern const struct sanity_case together_cases[];
extern const struct sanity_case data_cases[];
extern const struct sanity_case life_cases[];
extern const struct sanity_case fork_cases[];
extern const struct sanity_case error_cases[];

/* Initialises CUDA with a current context on e->gpu, and opens the library. */
void start(struct env *e);
void start_cuda(struct env *e);

/* 0 where the driver does not know the attribute for this GPU, as 124 on GB10. */
int device_attribute(struct env *e, int attribute);

/* rm calls itself 2.4 where a GPU is coherent with the CPU. */
bool is_coherent_rm(struct env *e);

/* Prints a line of the case's own when -v is given. */
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Ends the case as skipped, and says why. */
void skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* End the case as failed unless the condition holds. */
void check_at(bool ok, const char *what, const char *file, int line);
void check_eq_at(long long got, long long want, const char *what,
		 const char *file, int line);
/* The same for an errno value, which is shown by its text. */
void check_rc_at(int got, int want, const char *what, const char *file,
		 int line);
void check_cu_at(const struct env *e, int result, const char *what,
		 const char *file, int line);

#define check(cond) check_at((cond), #cond, __FILE__, __LINE__)
#define check_eq(got, want) \
	check_eq_at((long long)(got), (long long)(want), #got, __FILE__, __LINE__)
#define check_rc(call, want) \
	check_rc_at((call), (want), #call, __FILE__, __LINE__)
#define check_cu(call) check_cu_at(e, (call), #call, __FILE__, __LINE__)

/* GPU memory of any kind; addr is aligned to GPU_PAGE_SIZE. */
struct buf {
	unsigned long addr;
	size_t size;	/* what was asked for, in whole GPU pages */

	enum mem_kind kind;
	cu_ptr raw;	/* what the driver gave */
	size_t raw_size;
	cu_mem mem;
	gdr_mem_t ext;
};

void buf_alloc(struct env *e, struct buf *b, enum mem_kind kind, size_t size);
void buf_alloc_on(struct env *e, struct buf *b, enum mem_kind kind, size_t size,
		  int gpu);
/* VMM memory whose handle can be exported as fd_type says. */
void buf_alloc_vmm(struct env *e, struct buf *b, size_t size, int gpu,
		   int fd_type);
void buf_free(struct env *e, struct buf *b);

/* A pinned and mapped piece of GPU memory. */
struct map {
	gdr_mh_t mh;
	void *va;		/* what gdr_map gave */
	size_t size;		/* what it was asked for */
	unsigned char *p;	/* the byte at the address that was pinned */
};

void map_make(struct env *e, struct map *m, unsigned long addr, size_t size);
void map_drop(struct env *e, struct map *m);
gdr_mh_t pin_only(struct env *e, unsigned long addr, size_t size);

/* All of a new buffer, mapped. */
void alloc_mapped(struct env *e, struct buf *b, struct map *m, enum mem_kind kind, size_t size);
void free_mapped(struct env *e, struct buf *b, struct map *m);

/* Copies by CUDA, which wait until they are complete. */
void gpu_write(struct env *e, unsigned long addr, const void *src, size_t size);
void gpu_read(struct env *e, void *dst, unsigned long addr, size_t size);
/* Checks that the GPU's memory holds the bytes at want. */
void gpu_check(struct env *e, unsigned long addr, const void *want, size_t size);

/* Both ways, at the start, in the middle and at the very end of a mapping of addr. */
void copy_both_ways(struct env *e, struct map *m, unsigned long addr, size_t size);

/* Bytes that depend on the seed and are never the same twice in a row. */
void fill(void *p, size_t size, uint64_t seed);
void *must_alloc(size_t size);

/* Marks an out-parameter; whether a call that failed left it as it was. */
void mark(void *p, size_t size);
bool untouched(const void *p, size_t size);

/* Whether a load or store of one byte raises SIGSEGV or SIGBUS. The store's byte is WRITTEN. */
#define WRITTEN 0xbd
bool read_faults(const volatile void *p);
bool write_faults(volatile void *p);

/*
 * Whether p, where the GPU's memory has WRITTEN, shows that memory no more after an unmap: it
 * faults, or has other bytes for a while. Then it stores a byte there, which the GPU's memory
 * must not get.
 */
bool is_gone(volatile void *p);

/* How many file descriptors are open, and how many do not close on exec. */
int count_fds(void);
int count_inheritable_fds(void);

/*
 * fork, and a wait that fails the case unless the child ended well. The child
 * has a watchdog of its own, is killed when its parent ends, and must end by
 * child_done or a failed check.
 */
pid_t fork_child(void);
void join_child(pid_t pid);
void child_done(void) __attribute__((noreturn));

#endif
