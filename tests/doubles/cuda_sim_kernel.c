// SPDX-License-Identifier: MIT
/*
 * Simulated libcuda: device memory of the kernel. Test code.
 *
 * With CUDA_SIM_KERNEL=1 memory comes from the simulated nvidia.ko of tests/kmod. That
 * driver knows the device addresses as well, so gdrdrv can pin them. Such memory is in no
 * memfd.
 */
#include "cuda_sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../kmod/nvidia_sim_uapi.h"

#define KERNEL_PAGE (64ull << 10)

static int device = -1;	/* open from cuInit on */

bool kernel_mode(void)
{
	return env_number("CUDA_SIM_KERNEL", 0, 1);
}

int kernel_init(void)
{
	device = open(NVIDIA_SIM_DEVICE, O_RDWR | O_CLOEXEC);
	if (device >= 0)
		return CU_OK;
	perror("CUDA_SIM_KERNEL=1: " NVIDIA_SIM_DEVICE " (load the simulated nvidia.ko)");
	return CU_NO_DEVICE;
}

/* The result that a program gets for a failed call to the driver. */
static int result_of_errno(void)
{
	return errno == ENOMEM ? CU_OUT_OF_MEMORY : CU_UNKNOWN;
}

static struct nvidia_sim_stats stats(void)
{
	struct nvidia_sim_stats s;

	if (ioctl(device, NVIDIA_SIM_STATS, &s) < 0) {
		perror("simulated libcuda: " NVIDIA_SIM_DEVICE);
		abort();
	}
	return s;
}

uint64_t kernel_total(void)
{
	return stats().pages_total * KERNEL_PAGE;
}

uint64_t kernel_free_bytes(void)
{
	return stats().pages_free * KERNEL_PAGE;
}

/* The driver's memory, in whole pages, and the CPU's view of it. */
int kernel_mem_new(uint64_t *size, uint64_t *offset, uint8_t **view)
{
	struct nvidia_sim_memory m = { .size = (*size + KERNEL_PAGE - 1) / KERNEL_PAGE * KERNEL_PAGE };
	void *p;

	if (ioctl(device, NVIDIA_SIM_CREATE, &m) < 0)
		return result_of_errno();
	p = mmap(NULL, m.size, PROT_READ | PROT_WRITE, MAP_SHARED, device, (off_t)m.offset);
	if (p == MAP_FAILED) {
		ioctl(device, NVIDIA_SIM_RELEASE, &m.offset);
		return CU_OUT_OF_MEMORY;
	}
	*size = m.size;
	*offset = m.offset;
	*view = p;
	return CU_OK;
}

void kernel_mem_free(uint64_t offset)
{
	if (ioctl(device, NVIDIA_SIM_RELEASE, &offset) < 0)
		perror("simulated libcuda: memory is lost");
}

/* Give the first size bytes of a memory the device address addr. */
int kernel_map(uint64_t offset, uint64_t addr, uint64_t size, struct p2p_tokens *tokens)
{
	struct nvidia_sim_map m = { .offset = offset, .va = addr, .size = size };

	if (ioctl(device, NVIDIA_SIM_MAP, &m) < 0)
		return result_of_errno();
	*tokens = (struct p2p_tokens){ m.p2p_token, m.va_space };
	return CU_OK;
}

/* The driver takes the memory away from all that have pinned it there. */
void kernel_unmap(uint64_t addr)
{
	if (ioctl(device, NVIDIA_SIM_FREE, &addr) < 0)
		perror("simulated libcuda: a device address is lost");
}

/* A dma-buf of a range of the memory. */
int kernel_export(uint64_t offset, uint64_t at, uint64_t size, int *fd)
{
	struct nvidia_sim_export e = { .offset = offset, .at = at, .size = size };

	*fd = ioctl(device, NVIDIA_SIM_EXPORT, &e);
	return *fd < 0 ? result_of_errno() : CU_OK;
}
