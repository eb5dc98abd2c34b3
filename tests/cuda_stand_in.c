/* A stand-in for the virtual memory calls of NVIDIA's driver: device memory is a memfd.

   Types and constants are those of cuda.h. CUDA_STAND_IN_FAILS names a call that fails. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int CUresult;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct { int type; int id; } CUmemLocation;
typedef struct {
    int type;
    int requestedHandleTypes;
    CUmemLocation location;
    void *win32HandleMetaData;
    struct {
        unsigned char compressionType;
        unsigned char gpuDirectRDMACapable;
        unsigned short usage;
        unsigned char reserved[4];
    } allocFlags;
} CUmemAllocationProp;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2 };
enum { UNIT = 2 << 20 };

#define MAY_FAIL(name) \
    if (getenv("CUDA_STAND_IN_FAILS") && !strcmp(getenv("CUDA_STAND_IN_FAILS"), #name)) \
        return OUT_OF_MEMORY

static int is_valid(const CUmemAllocationProp *given) {
    const CUmemAllocationProp wanted = {1, 1, {1, given->location.id}, NULL, {0}};
    return given->location.id == 3 && !memcmp(given, &wanted, sizeof wanted);
}

CUresult cuMemGetAllocationGranularity(size_t *unit, const CUmemAllocationProp *given, int option) {
    *unit = UNIT;
    return is_valid(given) && option == 0 ? SUCCESS : INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
                     const CUmemAllocationProp *given, unsigned long long flags) {
    MAY_FAIL(cuMemCreate);
    if (!is_valid(given) || size % UNIT || flags)
        return INVALID_VALUE;
    int fd = memfd_create("cuda-stand-in", MFD_CLOEXEC);
    if (ftruncate(fd, (off_t)size))
        return OUT_OF_MEMORY;
    *handle = (unsigned long long)fd;
    return SUCCESS;
}

CUresult cuMemExportToShareableHandle(void *fd, CUmemGenericAllocationHandle handle, int type,
                                      unsigned long long flags) {
    MAY_FAIL(cuMemExportToShareableHandle);
    if (type != 1 || flags)
        return INVALID_VALUE;
    *(int *)fd = dup((int)handle);
    return SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *fd, int type) {
    MAY_FAIL(cuMemImportFromShareableHandle);
    *handle = (unsigned long long)dup((int)(uintptr_t)fd);
    return type == 1 ? SUCCESS : INVALID_VALUE;
}

CUresult cuMemAddressReserve(CUdeviceptr *at, size_t size, size_t alignment, CUdeviceptr address,
                             unsigned long long flags) {
    MAY_FAIL(cuMemAddressReserve);
    *at = (CUdeviceptr)mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return alignment || address || flags ? INVALID_VALUE : SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    MAY_FAIL(cuMemMap);
    mmap((void *)at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, (off_t)offset);
    return flags ? INVALID_VALUE : SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *access, size_t count) {
    MAY_FAIL(cuMemSetAccess);
    if (count != 1 || access->location.type != 1 || access->location.id != 3)
        return INVALID_VALUE;
    int writes = access->flags == 3 ? PROT_WRITE : 0;
    return mprotect((void *)at, size, PROT_READ | writes) ? INVALID_VALUE : SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
    mmap((void *)at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr at, size_t size) {
    return munmap((void *)at, size) ? INVALID_VALUE : SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return close((int)handle) ? INVALID_VALUE : SUCCESS;
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream) {
    if (stream != (void *)7)
        return INVALID_VALUE;
    memcpy((void *)to, (void *)from, size);
    return SUCCESS;
}

CUresult cuGetErrorString(CUresult code, const char **words) {
    *words = code == OUT_OF_MEMORY ? "out of memory" : "invalid argument";
    return SUCCESS;
}
