/* SPDX-License-Identifier: MIT */
/*
 * ptx.h - runs a kernel of PTX text, of the few instructions that this project's have.
 *
 * It is as strict as ptxas: an unknown instruction, an unknown register, one of another
 * width is refused. It is as strict as a GPU: an address that is not on its boundary or in
 * no memory ends the kernel, as does a thread that ends while others wait for it at a
 * barrier. A store is seen by others after a fence or a release alone, and those that one fence
 * ends are seen in the wrong order. A load may be of the time of the last fence or acquire; plain
 * ones, of a cache, are until the next one.
 * Relaxed, release and acquire are of the memory, at once; relaxed ones order nothing.
 */
#ifndef PTX_H
#define PTX_H

#include <stddef.h>
#include <stdint.h>

struct ptx;

/* Where addr's size bytes lie, or NULL. */
typedef void *ptx_memory(uint64_t addr, size_t size);

/* Reads the kernel of that name. NULL: said has why. */
struct ptx *ptx_load(const char *text, const char *entry, char said[128]);
void ptx_free(struct ptx *p);

/* Its parameters, and the bytes of one. */
unsigned int ptx_params(const struct ptx *p);
unsigned int ptx_param_size(const struct ptx *p, unsigned int i);

/*
 * Runs it to its end, with params as cuLaunchKernel takes them; %clock64 counts
 * nanoseconds. Returns NULL, or what ended it.
 */
const char *ptx_run(struct ptx *p, unsigned int blocks, unsigned int threads, void **params,
		    ptx_memory *memory);

#endif
