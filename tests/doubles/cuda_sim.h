/* SPDX-License-Identifier: MIT */
/*
 * Inside of the simulated libcuda. Test code: it never ships. README.md says
 * what it models and what it does not.
 *
 * One lock guards all of this state. An entry point takes it with enter() or
 * enter_ctx() and drops it with leave(), whose argument it answers; the other functions
 * run under it.
 */
#ifndef CUDA_SIM_H
#define CUDA_SIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE	/* memfd_create; this header is the first one included */
#endif

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Results of the driver API. */
enum {
	CU_OK = 0,
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_NOT_INITIALIZED = 3,
	CU_NO_DEVICE = 100,
	CU_INVALID_DEVICE = 101,
	CU_INVALID_CONTEXT = 201,
	CU_OPERATING_SYSTEM = 304,
	CU_INVALID_HANDLE = 400,
	CU_ILLEGAL_STATE = 401,
	CU_NOT_FOUND = 500,
	CU_NOT_READY = 600,
	CU_CONTEXT_DESTROYED = 709,
	CU_HOST_ALREADY_REGISTERED = 712,
	CU_HOST_NOT_REGISTERED = 713,
	CU_LAUNCH_FAILED = 719,
	CU_NOT_PERMITTED = 800,
	CU_NOT_SUPPORTED = 801,
	CU_CAPTURE_UNSUPPORTED = 900,
	CU_CAPTURE_INVALIDATED = 901,
	CU_CAPTURE_WRONG_THREAD = 908,
	CU_UNKNOWN = 999,
};

#define SIM_MAX_DEVICES 8
#define GRANULARITY (2ull << 20)
#define GPU_PAGE (64ull << 10)	/* no object ends inside of one */
#define HANDLE_POSIX_FD 1
#define DMABUF_DRIVER_VERSION 13030	/* the first whose dma-bufs can be mapped */
#define MAPPING_DRIVER_VERSION 11070	/* the first with pointer attributes 18 to 20 */

struct location {
	int type;	/* 1: device */
	int id;
};

/* CUmemAllocationProp */
struct mem_prop {
	int type;	/* 1: pinned */
	int requested_handle_types;
	struct location location;
	void *win32_handle_meta;
	uint8_t compression;
	uint8_t gpu_direct_rdma;
	uint16_t usage;
	uint8_t reserved[4];
};

/* CUmemAccessDesc */
struct access_desc {
	struct location location;
	int flags;	/* 0: none, 1: read, 3: read and write */
};

_Static_assert(sizeof(struct mem_prop) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(struct access_desc) == 12, "CUmemAccessDesc");

/* The value of the P2P_TOKENS attribute. */
struct p2p_tokens {
	uint64_t token;
	uint32_t va_space;
};

/* Part of a memory that lives in a memfd of its own. */
struct carve {
	struct carve *next;
	uint64_t offset, size;	/* whole host pages, inside the memory */
	dev_t dev;
	ino_t ino;
};

/*
 * Device memory. Its byte at offset x is always at view + x, whatever memfd has
 * the byte. Carves do not overlap. The view maps each carve's memfd over that of
 * the memory. In kernel mode there is no memfd, and the driver exports ranges. In RM
 * mode there is no memfd either, and the driver exports.
 */
struct mem {
	unsigned int refs;	/* handles and chunks and buffers that use it */
	int device;
	uint64_t id;		/* MEMORY_BLOCK_ID */
	int fd;			/* the memory's own memfd, close-on-exec; or -1 */
	dev_t dev;
	ino_t ino;
	uint64_t size;		/* whole host pages */
	uint8_t *view;
	uint64_t exported;	/* bytes from the start that fd may be mapped for elsewhere */
	struct carve *carves;
	uint64_t kernel;	/* in kernel mode: the driver's name for it */
	struct p2p_tokens tokens;	/* of its last map */
	struct mem *next;	/* in RM mode: of those with an object */
	bool host;		/* memory of the host, in RM mode alone */
	uint32_t object;	/* in RM mode: the object, */
	uint64_t linear;	/* ... the name of the view */
};

/*
 * A CUmemGenericAllocationHandle. It is on the list while refs or mappings is not 0.
 * Programs may use it while refs is not 0.
 */
struct handle {
	struct handle *next;
	uint64_t id;		/* what programs hold; never used twice */
	unsigned int refs, mappings;
	struct mem *mem;
	struct mem_prop prop;
};

struct ctx {
	struct ctx *next;
	int device;
	bool primary;
	uint64_t id;		/* of cuCtxGetId: another one when a primary context begins anew */
	unsigned int refs;	/* 0: destroyed, or a primary one that is not active */
	bool reset;		/* a primary one that was reset; its next retain begins it anew */
	bool lost;		/* the GPU faulted in it: each call in it is 719 until it is reset */
	unsigned int flags;
};

#define CTX_SYNC_MEMOPS 0x80	/* in flags: SYNC_MEMOPS for all buffers of the context */

/* An interval of device addresses that is in use. The list is sorted. */
struct va {
	struct va *next;
	uint64_t addr, size;	/* multiples of GRANULARITY */
	bool reservation;	/* of cuMemAddressReserve */
};

/*
 * A chunk that small buffers of one context share: those of cuMemAlloc, or those of a pool.
 */
struct chunk {
	struct chunk *next;
	struct ctx *ctx;
	struct mem *mem;
	uint64_t addr, size;	/* size: a multiple of GRANULARITY */
	struct pool *pool;	/* NULL: of cuMemAlloc */
	unsigned int buffers;	/* never 0 */
	struct uvm *ways[SIM_MAX_DEVICES];	/* by which other GPUs reach it */
};

/* A CUmemoryPool. A destroyed one lives until its last chunk is gone. */
struct pool {
	struct pool *next;
	int device;
	unsigned int access;	/* a bit for each device */
	unsigned int mapped;	/* other GPUs that reach its chunks */
	unsigned int chunks;
	bool gone;
	uint64_t addr, size;	/* its space; 0: no use was made of it yet */
	struct uvm *space;
};

/* Memory that a device pointer can point into. The list is sorted by address. */
struct buffer {
	struct buffer *next;
	uint64_t addr, size;
	struct mem *mem;
	uint64_t offset;	/* of addr in mem */
	struct ctx *ctx;	/* NULL: a mapping of handle */
	struct chunk *chunk;	/* NULL: not in a chunk */
	struct handle *handle;
	unsigned int readers, writers;	/* a bit for each device */
	bool sync_memops;
	struct import *import;	/* opened by cuIpcOpenMemHandle; another process has made it */
	unsigned int opens;	/* ... so many times */
	uint64_t id;
};

#pragma GCC visibility push(hidden)

/* cuda_sim.c: entry, leaving, configuration */
int enter(const char *name);
int enter_ctx(const char *name);
int leave(int result);
bool between_answers(void);
_Noreturn void fault_in_driver(const char *name);

/* What the driver answers for the context of memory that is freed while it answers. */
extern struct ctx no_ctx;
void wait_unlocked(pthread_cond_t *cond);
int device_count(void);
int driver_version(void);
long env_number(const char *name, long otherwise, long max);
bool device_flag(const char *env, int device, bool otherwise);
uint64_t next_id(void);
void *own_symbol(const char *name);

/* cuda_sim_fault.c */
extern pthread_mutex_t notes_lock;	/* taken without the other one, or after it */
int fault(const char *name);

/* The first on a list that cond is true of, or NULL. All lists go by next. */
#define LIST_FIND(it, list, cond)				\
	({							\
		__typeof__(list) it = (list);			\
								\
		while (it && !(cond))				\
			it = it->next;				\
		it;						\
	})

/* Takes item off its list. */
#define LIST_TAKE(list, item)					\
	do {							\
		__typeof__(list) *link_ = &(list);		\
								\
		while (*link_ != (item))			\
			link_ = &(*link_)->next;		\
		*link_ = (*link_)->next;			\
	} while (0)

/* What is alive of this library's own: see cuda_sim_live(). */
extern unsigned long live;

/* The end of a call that answers one value. */
#define GIVE(to, value) ((to) ? (*(to) = (value), CU_OK) : CU_INVALID_VALUE)

/* cuda_sim_device.c */
int check_device(int device);
bool dmabuf_mmap(int device);

/* cuda_sim_ctx.c */
struct stream;
struct ctx *current_ctx(void);
bool ctx_alive(const struct ctx *ctx);
bool stream_known(const struct stream *stream);
int stream_takes(const struct stream *stream, bool *now);

/* cuda_sim_capture.c */
int capture_forbids(const char *name);
bool capture_takes(const struct stream *stream, int *result);
int capture_waits(const struct stream *stream);
void capture_forget(const struct stream *stream);

/* cuda_sim_work.c */
void kernel_forget(const struct ctx *ctx);
void kernel_wait(void);

/* cuda_sim_mem.c */
uint64_t mem_total(void);
unsigned long mem_count(void);
struct mem *mem_new(int device, uint64_t size, int *result);
struct mem *mem_new_host(uint64_t size, int *result);
struct mem *mem_import_shared(int device, uint32_t client, uint32_t object, int *result);
struct mem *mem_import_fd(int fd, int *result);
struct mem *mem_get(struct mem *m);
void mem_put(struct mem *m);
uint64_t mem_free_bytes(int device);
int mem_map(struct mem *m, uint64_t addr, uint64_t size, const struct ctx *ctx, bool in_pool);
int mem_unmap(uint64_t addr);

/* cuda_sim_kernel.c */
bool kernel_mode(void);
int kernel_init(void);
uint64_t kernel_total(void);
uint64_t kernel_free_bytes(void);
int kernel_mem_new(uint64_t *size, uint64_t *offset, uint8_t **view);
void kernel_mem_free(uint64_t offset);
int kernel_export(uint64_t offset, uint64_t at, uint64_t size, int *fd);
int kernel_map(uint64_t offset, uint64_t addr, uint64_t size, struct p2p_tokens *tokens);
void kernel_unmap(uint64_t addr);

/* cuda_sim_rm.c */
bool rm_mode(void);
int rm_driver_version(void);
int rm_kernel_driver(void);
int rm_init(int *devices);
bool rm_coherent(int device);	/* as a NUMA node of the CPU's */
bool rm_is_system(int device);	/* device memory is the system's */
bool rm_shares(int device);	/* with other processes: CUDA IPC, dma-bufs */
struct sim_pci rm_pci(int device);
uint64_t rm_total(void);
uint64_t rm_free_bytes(int device);
int rm_mem_new(struct mem *m, uint64_t size);
void rm_mem_free(struct mem *m);
int rm_export_range(const struct mem *m, uint64_t offset, uint64_t size, uint64_t claimed,
		    bool mappable, int *fd);
int rm_export_object(const struct mem *m, bool compressible, int *fd);
int rm_import_object(struct mem *m, int fd);
int rm_import_shared(struct mem *m, uint32_t client_src, uint32_t object);
int rm_shared_device(uint32_t client_src, uint32_t object);
int rm_share(const struct mem *m, uint32_t *client_src, uint32_t *object);
uint32_t rm_device(int device);
uint32_t rm_subdevice(int device);
void rm_uuid(int device, uint8_t uuid[16]);

/* cuda_sim_object.c */
extern struct rm {
	int ctl;		/* the control file, */
	uint32_t client;	/* ... and the client on it */
} rm;
int rm_result(uint32_t status);
uint32_t rm_handle_take(void);
void rm_handle_put(uint32_t handle);
int rm_alloc(uint32_t parent, uint32_t class, void *params, size_t size, uint32_t *object);
uint32_t rm_control(uint32_t cmd, void *params, size_t size);
int rm_free(uint32_t parent, uint32_t object);
int object_add_foreign(uint32_t parent, uint32_t handle);
int object_new(uint32_t parent, uint32_t class, uint64_t size, uint32_t *handle);
void object_free(uint32_t parent, uint32_t handle);
bool objects_foreign(void);
void objects_end(void);
int objects_again(void);

/* cuda_sim_uvm.c: a range of addresses that UVM knows, or a block in one. */
struct uvm {
	struct uvm *next;
	enum { UVM_ALONE, UVM_SPACE, UVM_BLOCK } kind;
	uint64_t addr, size;
	int owner;		/* device whose memory it is */
	uint32_t object;
	bool fabric;		/* not the memory, but what other GPUs reach it by */
	const struct ctx *ctx;	/* whose memory it is; NULL: none's alone */
	unsigned int gpus;	/* that have it mapped */
};
int uvm_init(int devices);
int uvm_begin(const struct uvm *what, unsigned int gpus, struct uvm **out);
int uvm_end(struct uvm *u);
struct uvm *uvm_find(uint64_t addr);
bool uvm_in_use(uint64_t addr, uint64_t size);
int uvm_grant_context(const struct ctx *ctx, int device);
void uvm_revoke_context(const struct ctx *ctx, int device);
int uvm_end_all(void);
int uvm_again(void);

/* cuda_sim_peer.c */
unsigned int peers_of(const struct ctx *ctx);
void peers_forget(const struct ctx *ctx);

/* What cuda_sim_differ has set. */
extern struct differences {
	uint32_t ipc_offset, ipc_client, export_offset;
} differences;
bool rm_fd_holds(int fd);
unsigned long rm_live(void);

/* cuda_sim_mmap.c */
bool mmap_taken(void);

/* cuda_sim_export.c */
int mem_export(struct mem *m, uint64_t offset, uint64_t size, int *fd);
bool dmabuf_supported(int device);
unsigned long exported_fds(void);

/* cuda_sim_va.c */
int va_init(void);
int va_take(uint64_t size, uint64_t align, bool reservation, uint64_t *addr);
void va_release(uint64_t addr);
struct va *va_find(uint64_t addr);
bool va_is_device(uint64_t addr, uint64_t size);
struct buffer *buffer_add(uint64_t addr, uint64_t size, struct mem *m, uint64_t offset);
void buffer_drop(struct buffer *b);
struct buffer *buffer_find(uint64_t addr);
struct buffer *buffer_first(void);

/* cuda_sim_alloc.c */
void alloc_forget(struct ctx *ctx);
int alloc_from_pool(struct ctx *ctx, struct pool *pool, uint64_t size, struct buffer **b);
int alloc_free(struct buffer *b);
uint64_t alloc_place(const struct pool *pool, uint64_t size);
int alloc_reach(const struct pool *pool);

/* cuda_sim_pool.c */
void pool_put(struct pool *p);
int pool_open(struct pool *p);

/* cuda_sim_host.c */
bool host_find(uint64_t addr, bool *managed);
bool host_locked(uint64_t addr, uint64_t size);
bool host_mixed(uint64_t addr, uint64_t size);
void host_forget(const struct ctx *ctx);
int host_free(uint64_t addr, bool managed);

/* cuda_sim_ipc.c */
int ipc_close(struct buffer *b);

/* cuda_sim_copy.c */
void flush(void);

/* cuda_sim_strict.c */
void strict_ask(const char *name, uint64_t addr, uint64_t size, const void *caller);
void strict_copy(const char *name, uint64_t addr, uint64_t size, const void *caller);
void strict_made(uint64_t addr, uint64_t size, const void *caller);
void strict_gone(uint64_t addr);

#pragma GCC visibility pop

#define SIM_API __attribute__((visibility("default")))

/* An exported function whose answer is an expression; that with _CTX needs a current context. */
#define SIM_ENTRY(how, name, params, ...)		\
	int name params					\
	{						\
		return how(__func__) ?: leave(__VA_ARGS__);	\
	}
/* The same of a function that asks about an address: see cuda_sim_strict.c. */
#define CALLER __builtin_return_address(0)
#define SIM_QUESTION(how, name, addr, params, ...)	\
	SIM_API int name params				\
	{						\
		strict_ask(__func__, (uintptr_t)(addr), 1, CALLER); \
		return how(__func__) ?: leave(__VA_ARGS__);	\
	}

/*
 * Stands behind the declaration of a function, which programs may hook by its first bytes (UCX:
 * "bistro"). The hook moves 12 bytes aside and writes a jump in their place. It knows
 * only the instructions that the real driver's functions begin with. So the entry here
 * begins with the same instructions. Then it jumps to the function, whose own symbol is
 * sim_NAME.
 */
#ifdef __x86_64__
#define SIM_HOOKABLE(name)				\
	__asm__("sim_" #name)				\
		__attribute__((visibility("hidden")));	\
	__asm__(".pushsection .text\n"			\
		".globl " #name "\n"			\
		".type " #name ", @function\n"		\
		".p2align 4\n"				\
		#name ":\n"				\
		"push %rbp\n"				\
		"mov %rsp, %rbp\n"			\
		"mov $0, %eax\n"			\
		"mov $0, %eax\n"			\
		"pop %rbp\n"				\
		"jmp sim_" #name "\n"			\
		".size " #name ", . - " #name "\n"	\
		".popsection")
#else
#define SIM_HOOKABLE(name)
#endif

#define SIM_CALL(name, params, ...)			\
	int name params SIM_HOOKABLE(name);		\
	SIM_ENTRY(enter, name, params, __VA_ARGS__)
#define SIM_CALL_CTX(name, params, ...)			\
	int name params SIM_HOOKABLE(name);		\
	SIM_ENTRY(enter_ctx, name, params, __VA_ARGS__)

#endif
