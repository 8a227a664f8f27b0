/* SPDX-License-Identifier: MIT */
/*
 * env.h - what the environment of the host asks for. The library reads no variable
 * elsewhere; env.c has the table of all of them.
 */
#ifndef GDR_ENV_H
#define GDR_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../copy/copy.h"
#include "../copy/plan.h"

#pragma GCC visibility push(hidden)

/* What the environment asks for. The Go runtime gets an empty environment. */
struct gdr_options {
	const char *backend;	/* GDRCOPY_BACKEND or NULL */
	int force_dmabuf;	/* GDRCOPY_USE_DMABUF_MMAP is exactly "1" */
	const char *vk_driver_files;	/* VK_DRIVER_FILES or NULL */
	int log_level;		/* lowest level that is logged; 5 is none */
};

/* For copies. A process reads it once, when the library starts in it. */
struct gdr_copy_env {
	const struct copy_impl *impl;	/* what copies through WC mappings use */
	bool direct;		/* short pieces of many are written by direct stores */
	struct copy_wishes wishes;	/* of long copies */
	uint64_t spin_us;	/* COPY_SPIN_FOREVER, or COPY_SPIN_UNSET */
};

/* A variable with a bad value, and what the value must be. */
struct gdr_env_error {
	const char *name, *want;
};

/*
 * For one gdr_open. The strings belong to the environment. They are valid until it
 * changes.
 */
struct gdr_options gdr_env_options(void);

/* The least level of the lines that are logged, in gdr_log's numbers. */
int gdr_env_log_level(void);

/* Returns EINVAL and sets *error if a value is bad. */
int gdr_env_copies(struct gdr_copy_env *env, struct gdr_env_error *error);

#pragma GCC visibility pop

#endif
