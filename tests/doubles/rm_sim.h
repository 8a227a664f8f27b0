/* SPDX-License-Identifier: MIT */
/*
 * Inside of the simulated driver in user mode. Test code: it never ships.
 * README.md says what it models and what it does not.
 *
 * The driver is a process of its own with one thread. The program under test and
 * its children run under a seccomp filter, which passes their requests to the
 * driver. A request waits until the driver answers it.
 */
#ifndef RM_SIM_H
#define RM_SIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "rm_uapi.h"
#include "sim_fault.h"
#include "sim_machine.h"

#define RM_MAX_GPUS 8
#define RM_PAGE 4096ull	/* of this machine */

/* Device memory: a memfd that has one user at least. */
struct rm_memory {
	unsigned int refs;	/* objects and files that hold it */
	int gpu;
	int fd;
	uint64_t size;		/* whole pages */
	uint64_t id;		/* never used twice */
};

/* The result of one RM_MAP_MEMORY. It ends before its object does. */
struct rm_mapping {
	struct rm_mapping *next;
	uint64_t linear, offset, length;
	bool counted;		/* in the GPU's BAR1 */
	uint64_t bar_at;	/* and its place there */
	uint64_t addr;		/* where the program has it mapped, if that is known */
};

/*
 * A device, memory below one, or the capabilities of confidential computing. Its handle is
 * its client's.
 */
struct rm_object {
	struct rm_object *next;
	uint32_t handle;
	int gpu;
	struct rm_memory *memory;	/* NULL: it is none */
	bool confidential;
	struct rm_object *device;	/* of memory */
	bool shared;			/* any process may duplicate it */
	struct rm_mapping *mappings;
};

struct rm_client {
	struct rm_client *next;
	uint32_t handle;
	uint32_t last;		/* handle that the driver chose */
	struct rm_file *file;
	pid_t process;
	struct rm_object *objects;
};

enum rm_file_kind { RM_FILE_CTL, RM_FILE_GPU, RM_FILE_DMABUF };

/*
 * An open file. The program has the read end of a pipe, and the driver has the write end.
 * The write end shows when the last copy of the read end is closed.
 */
struct rm_file {
	struct rm_file *next;
	enum rm_file_kind kind;
	uint64_t id;		/* never used twice */
	ino_t ino;		/* of the pipe */
	int end;
	int gpu;
	bool cuda;		/* a control file of the simulated libcuda */
	uint64_t registered;	/* a GPU's file: id of its control file, or 0 */
	struct rm_memory *memory;	/* exported into it, or NULL */
	uint64_t offset, length;	/* a dma-buf's part of it that mmap gives */
	uint64_t linear;	/* the mapping that it serves, or 0 */
	uint32_t mapper;	/* the client of that mapping */
};

/* The thread that waits for an answer. */
struct rm_caller {
	uint64_t id;		/* of the notification */
	pid_t tid;
	uint64_t code;		/* address of its system call instruction */
	int fd;			/* the descriptor of the request */
	struct rm_file *file;	/* the driver's file that fd is */
};

struct rm_gpu {
	uint32_t minor, instance;
	bool attached;		/* a file of it was opened once */
	uint64_t used, bar_used;
};

/* rm_sim.c: configuration, read once before the driver starts */
extern struct rm_config {
	int gpus;
	unsigned int driver;	/* 535, 550, ...: the version's first number */
	uint64_t bar;		/* bytes for each GPU */
	uint64_t page;		/* the kernel's, in bytes */
	enum sim_machine machine[RM_MAX_GPUS];
	unsigned int answer;	/* of RM_MAP_MEMORY, 0: that of the machine */
	unsigned int phys_attr;	/* how system memory is cached, as RM_CTRL_SURFACE has it */
	bool scattered;		/* see rm_sim_machine.c */
	bool bar_is_device;	/* BAR1 is Device memory, on Arm */
} config;
extern struct sim_faults rm_faults;

/* rm_sim_server.c */
void serve(int listener);
int caller_read(const struct rm_caller *c, uint64_t addr, void *buf, size_t n);
int caller_write(const struct rm_caller *c, uint64_t addr, const void *buf, size_t n);
bool caller_is(const struct rm_caller *c, pid_t process);
pid_t caller_process(const struct rm_caller *c);
struct rm_file *caller_file(const struct rm_caller *c, int fd);
int caller_give(const struct rm_caller *c, int fd, bool cloexec);
int caller_replace(const struct rm_caller *c, int fd);
struct rm_file *file_new(enum rm_file_kind kind, int gpu, int *fd);
struct rm_file *file_first(void);

/* rm_sim_objects.c */
extern struct rm_gpu gpus[RM_MAX_GPUS];
uint64_t gpu_memory(void);
uint32_t gpu_id(int gpu);
int gpu_by_id(uint32_t id);
int gpu_by_minor(long minor);
int gpu_by_instance(uint32_t instance);
struct rm_memory *memory_new(int gpu, uint64_t size);
struct rm_memory *memory_get(struct rm_memory *m);
void memory_put(struct rm_memory *m);
struct rm_client *client_new(struct rm_file *file, pid_t process);
struct rm_client *client_find(uint32_t handle);
struct rm_client *client_first(void);
void client_end(struct rm_client *c);
void clients_of_file_end(const struct rm_file *file);
uint32_t object_new(struct rm_client *c, uint32_t *handle, struct rm_object **o);
struct rm_object *object_find(const struct rm_client *c, uint32_t handle);
void object_end(struct rm_client *c, struct rm_object *o);
struct rm_mapping *mapping_new(struct rm_object *o, uint64_t offset, uint64_t length, bool counted);
struct rm_mapping *mapping_find(const struct rm_client *c, uint64_t linear, struct rm_object **o);
void mapping_end(struct rm_object *o, struct rm_mapping *m);

/* rm_sim_machine.c: each that returns uint32_t gives a status */
bool gpu_is_system(int gpu);
bool gpu_has_bar(int gpu);
bool gpu_exports(int gpu);
uint32_t check_duplicate(const struct rm_caller *c, int gpu);
uint32_t check_map(const struct rm_caller *c, const struct rm_memory *m, uint64_t offset,
		   uint64_t length);
uint32_t map_answer(int gpu);
void card_info(int gpu, struct rm_card_info *card);
uint32_t id_info(const struct rm_caller *c, struct rm_object *o, void *params);
uint32_t attached(const struct rm_caller *c, struct rm_object *o, void *params);
uint32_t active_devices(const struct rm_caller *c, struct rm_object *o, void *params);
uint32_t chipset(const struct rm_caller *c, struct rm_object *o, void *params);
uint32_t address_space(const struct rm_caller *c, struct rm_object *o, void *params);
uint32_t surface(const struct rm_caller *c, struct rm_object *o, void *params);
uint32_t page_size(const struct rm_caller *c, struct rm_object *o, void *params);
uint32_t capabilities(const struct rm_caller *c, struct rm_object *o, void *params);
uint32_t capabilities_size(void);

/* rm_sim_revoke.c */
void revoke_later(const struct rm_caller *c, const struct rm_client *client,
		  const struct rm_object *o);
void revoke_now(void);

/* rm_sim_requests.c: 0 or an errno */
int request(const struct rm_caller *c, unsigned int cmd, void *arg);
int fault(const struct rm_caller *c, const char *name);
bool request_known(const char *name);
struct rm_client *own_client(const struct rm_caller *c, uint32_t handle);

/* rm_sim_private.c: the same, each with its struct */
int rm_sim_info(const struct rm_caller *c, void *arg);
int rm_sim_stats(const struct rm_caller *c, void *arg);
int rm_sim_mmap(const struct rm_caller *c, void *arg);
int rm_sim_mapped(const struct rm_caller *c, void *arg);
int rm_sim_holds(const struct rm_caller *c, void *arg);
int rm_sim_live(const struct rm_caller *c, void *arg);
int rm_sim_fail(const struct rm_caller *c, void *arg);
int rm_sim_cuda(const struct rm_caller *c, void *arg);

#endif
