/* SPDX-License-Identifier: MIT */
/*
 * env.h - what the environment of the host asks for.
 */
#ifndef GDR_ENV_H
#define GDR_ENV_H

#pragma GCC visibility push(hidden)

/* What the environment asks for. The Go runtime gets an empty environment. */
struct gdr_options {
	const char *backend;	/* GDRCOPY_BACKEND or NULL */
	const char *copy_impl;	/* GDRCOPY_COPY_IMPL or NULL */
	int force_dmabuf;	/* GDRCOPY_USE_DMABUF_MMAP is exactly "1" */
	int log_level;		/* lowest level that is logged; 5 is none */
};

/*
 * For one gdr_open. The strings belong to the environment. They are valid until it
 * changes.
 */
struct gdr_options gdr_env_options(void);

/* The least level of the lines that are logged, in gdr_log's numbers. */
int gdr_env_log_level(void);

#pragma GCC visibility pop

#endif
