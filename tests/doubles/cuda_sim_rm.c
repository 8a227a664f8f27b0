// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: device memory of NVIDIA's resource manager. Test code.
 *
 * With CUDA_SIM_RM=1 memory comes from the simulated driver, by the requests of
 * rm_uapi.h. This library has its own client, from cuInit on. As in the real library, all
 * requests go through its own reference to ioctl.
 */
#include "cuda_sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rm_uapi.h"
#include "sim_machine.h"

#define CARDS 32

static int ctl = -1;
static uint32_t client;

/* In the order of CUDA's ordinals. */
static struct gpu {
	struct rm_card_info card;
	enum sim_machine machine;
	int fd;
	uint32_t device, instance;
} gpus[SIM_MAX_DEVICES];

bool rm_mode(void)
{
	return env_number("CUDA_SIM_RM", 0, 1);
}

/* The launcher has checked the value. */
static int kernel_driver(void)
{
	const char *s = getenv("NVRM_SIM_DRIVER");

	return s ? atoi(s) : 580;
}

int rm_driver_version(void)
{
	int driver = kernel_driver();

	return driver < 550 ? 12020 : driver < 570 ? 12040 : driver < 580 ? 12080 : 13000;
}

/* The result that a program gets for a status. */
static int result_of(uint32_t status)
{
	switch (status) {
	case RM_OK:
		return CU_OK;
	case RM_NO_MEMORY:
	case RM_NO_RESOURCES:
		return CU_OUT_OF_MEMORY;
	}
	return CU_UNKNOWN;
}

static int by_address(const void *a, const void *b)
{
	const struct rm_card_info *x = &((const struct gpu *)a)->card, *y = &((const struct gpu *)b)->card;

	if (x->pci_domain != y->pci_domain)
		return x->pci_domain < y->pci_domain ? -1 : 1;
	if (x->pci_bus != y->pci_bus)
		return x->pci_bus < y->pci_bus ? -1 : 1;
	return x->pci_slot - y->pci_slot;
}

/* Removes what does not compute, and notes the machine of each. Returns how many are left. */
static int keep_computing(int n)
{
	int i, next = 0, kept = 0;

	for (i = 0; next < n; i++) {
		enum sim_machine m = sim_machine(i);

		if (m == SIM_TEGRA)
			continue;	/* it has no PCI address, so it is not in the list */
		gpus[kept] = gpus[next++];
		gpus[kept].machine = m;
		kept += sim_computes(m);
	}
	return kept;
}

/* Every GPU that computes, in CUDA's order. Returns how many, or minus a result. */
static int find_gpus(void)
{
	struct rm_card_info cards[CARDS] = { { .valid = 0 } };
	int i, n = 0;

	if (ioctl(ctl, RM_CARD_INFO(CARDS), cards))
		return -CU_NO_DEVICE;
	for (i = 0; i < CARDS && n < SIM_MAX_DEVICES; i++)
		if (cards[i].valid && cards[i].pci_vendor)
			gpus[n++].card = cards[i];
	qsort(gpus, (size_t)n, sizeof(gpus[0]), by_address);
	return keep_computing(n);
}

static int rm_alloc(uint32_t parent, uint32_t class, void *params, size_t size, uint32_t *object)
{
	struct rm_alloc a = { .root = client, .parent = parent, .class = class,
			      .params = (uintptr_t)params, .params_size = (uint32_t)size };

	if (ioctl(ctl, RM_ALLOC, &a))
		return CU_UNKNOWN;
	*object = a.object;
	return result_of(a.status);
}

static uint32_t rm_control(uint32_t cmd, void *params, size_t size)
{
	struct rm_control a = { .client = client, .object = client, .cmd = cmd,
				.params = (uintptr_t)params, .params_size = (uint32_t)size };

	return ioctl(ctl, RM_CONTROL, &a) ? RM_NOT_SUPPORTED : a.status;
}

static int gpu_open(const struct gpu *g)
{
	char path[32];

	snprintf(path, sizeof(path), RM_GPU_DEVICE "%u", g->card.minor);
	return open(path, O_RDWR | O_CLOEXEC);
}

static int gpu_init(struct gpu *g)
{
	struct rm_register_fd reg = { .ctl_fd = ctl };
	struct rm_id_info id = { .gpu_id = g->card.gpu_id };
	struct rm_device_params p = { .client_share = client, .va_mode = 2 };

	g->fd = gpu_open(g);
	if (g->fd < 0 || ioctl(g->fd, RM_REGISTER_FD, &reg))
		return CU_NO_DEVICE;
	if (rm_control(RM_CTRL_ID_INFO, &id, sizeof(id)))
		return CU_NO_DEVICE;
	p.instance = g->instance = id.instance;
	return rm_alloc(client, RM_CLASS_DEVICE, &p, sizeof(p), &g->device);
}

/* *devices is the wanted number at first, and the actual number afterwards. */
int rm_init(int *devices)
{
	uint32_t zero = 0;
	int i, n, result;

	if (!mmap_taken()) {
		fprintf(stderr, "CUDA_SIM_RM=1: the C library's mmap cannot be replaced here\n");
		return CU_OUT_OF_MEMORY;
	}
	ctl = open(RM_CTL_DEVICE, O_RDWR | O_CLOEXEC);
	if (ctl < 0) {
		perror("CUDA_SIM_RM=1: " RM_CTL_DEVICE " (run the program by rm_sim)");
		return CU_NO_DEVICE;
	}
	ioctl(ctl, RM_SIM_CUDA, &zero);
	result = rm_alloc(0, RM_CLASS_CLIENT, NULL, 0, &client);
	n = find_gpus();
	if (!result && n < 0)
		result = -n;
	if (!result && *devices > n)
		*devices = n;
	for (i = 0; !result && i < *devices; i++)
		result = gpu_init(&gpus[i]);
	return result;
}

bool rm_coherent(int device)
{
	return gpus[device].machine == SIM_GRACE;
}

bool rm_shares(int device)
{
	return gpus[device].machine != SIM_VGPU;
}

bool rm_is_system(int device)
{
	return gpus[device].machine == SIM_GB10;
}

void rm_pci(int device, unsigned int *domain, unsigned int *bus, unsigned int *slot)
{
	*domain = gpus[device].card.pci_domain;
	*bus = gpus[device].card.pci_bus;
	*slot = gpus[device].card.pci_slot;
}

static struct rm_sim_stats stats(int device)
{
	struct rm_sim_stats s = { .gpu_id = gpus[device].card.gpu_id };

	if (ioctl(ctl, RM_SIM_STATS, &s) || s.status) {
		perror("simulated libcuda: the simulated driver");
		abort();
	}
	return s;
}

uint64_t rm_total(void)
{
	return stats(0).total;
}

uint64_t rm_free_bytes(int device)
{
	struct rm_sim_stats s = stats(device);

	return s.total - s.used;
}

/* System memory is mapped through a control file. */
static int view_open(const struct mem *m)
{
	return m->host || rm_is_system(m->device) ? open(RM_CTL_DEVICE, O_RDWR | O_CLOEXEC) : gpu_open(&gpus[m->device]);
}

/* The CPU's view of an object. This library copies by it. */
static int view_new(struct mem *m)
{
	struct rm_map_memory a = { .client = client, .device = gpus[m->device].device,
				   .memory = m->object, .length = m->size,
				   .fd = view_open(m) };
	void *p = MAP_FAILED;

	if (a.fd < 0)
		return CU_OPERATING_SYSTEM;
	if (!ioctl(ctl, RM_MAP_MEMORY, &a) && !a.status)
		p = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED, a.fd, 0);
	close(a.fd);
	if (p == MAP_FAILED)
		return CU_OUT_OF_MEMORY;
	m->view = p;
	m->linear = a.linear;
	return CU_OK;
}

static void object_free(int device, uint32_t object)
{
	struct rm_free a = { .root = client, .parent = gpus[device].device, .object = object };

	if (ioctl(ctl, RM_FREE, &a) || a.status)
		fprintf(stderr, "simulated libcuda: RM_FREE: status %#x\n", a.status);
}

/* Memory for an object of this client. The object is freed if this fails. */
static int mem_of_object(struct mem *m)
{
	struct rm_sim_info info = { .client = client, .object = m->object };
	int result = CU_UNKNOWN;

	if (!ioctl(ctl, RM_SIM_INFO, &info) && !info.status) {
		m->size = info.size;
		result = view_new(m);
	}
	if (result)
		object_free(m->device, m->object);
	return result;
}

/* The driver rounds size up to its granularity. */
int rm_mem_new(struct mem *m, uint64_t size)
{
	struct rm_sim_memory p = { .size = (size + GRANULARITY - 1) / GRANULARITY * GRANULARITY,
				   .flags = m->host ? RM_SIM_HOST : 0 };
	int result = rm_alloc(gpus[m->device].device, RM_CLASS_MEMORY, &p, sizeof(p), &m->object);

	return result ? result : mem_of_object(m);
}

/* The driver keeps the memory while a duplicate exists. */
void rm_mem_free(struct mem *m)
{
	struct rm_unmap_memory a = { .client = client, .device = gpus[m->device].device,
				     .memory = m->object, .linear = m->linear };

	munmap(m->view, m->size);
	if (ioctl(ctl, RM_UNMAP_MEMORY, &a) || a.status)
		fprintf(stderr, "simulated libcuda: RM_UNMAP_MEMORY: status %#x\n", a.status);
	object_free(m->device, m->object);
}

/* The request has the object, its client and the offset in it. */
int rm_export_range(const struct mem *m, uint64_t offset, uint64_t size, uint64_t claimed,
		    bool mappable, int *fd)
{
	uint64_t at = offset + differences.export_offset;
	struct rm_dmabuf a = {
		.fd = -1,
		.client = client,
		.total_objects = 1,
		.objects = 1,
		.total_size = size,
		.allow_mmap = mappable,
		.handles = { m->object },
		.offsets = { at },
		.sizes = { claimed },
	};
	struct rm_dmabuf_2600 old = {
		.fd = -1,
		.client = client,
		.total_objects = 1,
		.objects = 1,
		.total_size = size,
		.handles = { m->object },
		.offsets = { at },
		.sizes = { claimed },
	};
	bool is_old = kernel_driver() < 570;
	int failed = is_old ? ioctl(gpus[m->device].fd, RM_EXPORT_DMABUF_2600, &old) :
			      ioctl(gpus[m->device].fd, RM_EXPORT_DMABUF, &a);
	uint32_t status = is_old ? old.status : a.status;

	if (failed || status == RM_NOT_SUPPORTED)
		return CU_NOT_SUPPORTED;
	*fd = is_old ? old.fd : a.fd;
	return status == RM_NO_RESOURCES ? CU_OPERATING_SYSTEM : status ? CU_INVALID_VALUE : CU_OK;
}

/* A file of the driver's that keeps the object. Its label is 4 and zeros, as 580.159.04 writes it. */
int rm_export_object(const struct mem *m, int *fd)
{
	struct rm_export_objects o = { .fd = open(RM_CTL_DEVICE, O_RDWR), .device = gpus[m->device].device, .most = 1,
				       .label = { 4 }, .objects = { m->object }, .n = 1 };

	if (o.fd < 0)
		return CU_OPERATING_SYSTEM;
	if (rm_control(RM_CTRL_EXPORT_OBJECTS, &o, sizeof(o))) {
		close(o.fd);
		return CU_UNKNOWN;
	}
	*fd = o.fd;
	return CU_OK;
}

/*
 * A memory for the first object of a file, whoever has exported it. As 580.159.04, it reads the first word of
 * the label alone.
 */
int rm_import_object(struct mem *m, int fd)
{
	struct rm_export_info info = { .fd = fd };
	struct rm_import_fd p = { .fd = fd, .type = RM_FD_OBJECT };
	bool is_old = kernel_driver() < 550;
	const uint8_t *label = is_old ? info.label - sizeof(info.mig) : info.label;
	uint32_t first;

	if (rm_control(RM_CTRL_EXPORT_INFO, &info, sizeof(info) - (is_old ? sizeof(info.mig) : 0)))
		return CU_INVALID_VALUE;
	memcpy(&first, label, sizeof(first));
	if (first != 0 && first != 4 && first != 6)
		return CU_NOT_SUPPORTED;
	for (m->device = 0; m->device < device_count() && gpus[m->device].instance != info.instance; m->device++)
		;
	if (m->device == device_count())
		return CU_INVALID_DEVICE;
	p.device = p.parent = gpus[m->device].device;
	if (rm_control(RM_CTRL_IMPORT_FD, &p, sizeof(p)))
		return CU_INVALID_VALUE;
	m->object = p.object;
	return mem_of_object(m);
}

/* A memory for another process's object, which that process has shared. */
int rm_import_shared(struct mem *m, uint32_t client_src, uint32_t object)
{
	for (m->device = 0; m->device < device_count(); m->device++) {
		struct rm_dup_object a = { .client = client, .parent = gpus[m->device].device,
					   .client_src = client_src, .object_src = object };

		if (ioctl(ctl, RM_DUP_OBJECT, &a))
			return CU_UNKNOWN;
		if (!a.status) {
			m->object = a.object;
			return mem_of_object(m);
		}
		if (a.status != RM_INVALID_PARENT)
			break;
	}
	return CU_INVALID_VALUE;
}

/* The names by which other processes can get the memory. */
int rm_share(const struct mem *m, uint32_t *client_src, uint32_t *object)
{
	struct rm_share a = { .client = client, .object = m->object };

	if (ioctl(ctl, RM_SHARE, &a))
		return CU_NOT_SUPPORTED;
	*client_src = client;
	*object = m->object;
	return result_of(a.status);
}

/* To be called after cuInit. */
SIM_API void rm_sim_fail(const char *name, int result, int nth)
{
	struct rm_sim_fail f = { .result = result, .nth = (uint32_t)nth };

	snprintf(f.name, sizeof(f.name), "%s", name);
	if (!ioctl(ctl, RM_SIM_FAIL, &f))
		return;
	fprintf(stderr, "rm_sim_fail: the simulated driver has no request %s\n", name);
	abort();
}

/* What this process has from the driver by clients other than this library's. */
unsigned long rm_live(void)
{
	struct rm_sim_live live = { .objects = 0 };

	return ioctl(ctl, RM_SIM_LIVE, &live) ? 0 : live.objects + live.mappings;
}

/* Whether fd is a file that keeps memory. */
bool rm_fd_holds(int fd)
{
	uint32_t zero = 0;

	return !ioctl(fd, RM_SIM_HOLDS, &zero);
}
