/* A stand-in for NVIDIA's libnvidia-ml.so.1: a hot RTX 3060 and a GTX 1650 that reports little.

   Only what holdfast calls; the signatures are those of the NVML API reference. Built with BROKEN it
   is a driver whose library and kernel module differ. NVML_STAND_IN_FILE names a file from which
   each call reads what changes: milliseconds of throttling by power and by heat, and the reasons of
   the RTX 3060. Negative milliseconds are not supported. Without the file, nothing is. With
   NVML_STAND_IN_MIG the RTX 3060 is divided into two instances. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    VERSION_MISMATCH = 18
};
enum { SW_POWER_CAP = 0x4, HW_THERMAL = 0x40 };

typedef struct card {
    const char *name, *uuid;
    int major, minor;
    unsigned cores, celsius, milliwatts, limit_milliwatts, percent, clock_mhz, max_clock_mhz;
    unsigned long long bytes, used, reasons;
} card;

static card cards[] = {
    {"NVIDIA GeForce RTX 3060", "GPU-3060", 8, 6, 3584, 86, 168500, 170000, 97, 1252, 1777,
     12884901888ull, 1073741824ull, SW_POWER_CAP | HW_THERMAL},
    {"NVIDIA GeForce GTX 1650", "GPU-1650", 7, 5, 896, 51, 0, 0, 0, 300, 1665,
     4294967296ull, 0, 0},
};

typedef struct { unsigned long long total, free, used; } memory;
typedef struct { unsigned long long reference_us, violation_ns; } violation;
typedef struct { unsigned gpu, memory; } utilization;

#ifdef BROKEN
int nvmlInitWithFlags(unsigned flags) { (void)flags; return VERSION_MISMATCH; }
int nvmlDeviceGetCount_v2(unsigned *count) { (void)count; return UNINITIALIZED; }
#else
int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
#endif
int nvmlShutdown(void) { return SUCCESS; }
/* The binding has words of its own for known errors. */
const char *nvmlErrorString(int result)
{
    return result == VERSION_MISMATCH ? "Driver/library version mismatch" : "Not Supported";
}
int nvmlDeviceGetHandleByIndex_v2(unsigned number, card **handle)
{
    if (number > 1) return INVALID_ARGUMENT;
    *handle = &cards[number];
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, card **handle)
{
    for (unsigned number = 0; number < 2; number++)
        if (!strcmp(cards[number].uuid, uuid)) {
            *handle = &cards[number];
            return SUCCESS;
        }
    return NOT_FOUND;
}
int nvmlDeviceGetName(card *c, char *text, unsigned size)
{
    strncpy(text, c->name, size);
    return SUCCESS;
}
int nvmlDeviceGetUUID(card *c, char *text, unsigned size)
{
    strncpy(text, c->uuid, size);
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(card *c, memory *found)
{
    *found = (memory){c->bytes, c->bytes - c->used, c->used};
    return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(card *c, int *major, int *minor)
{
    *major = c->major, *minor = c->minor;
    return SUCCESS;
}
#define INSTANCE .name = "NVIDIA GeForce RTX 3060 MIG 1g.3gb", .bytes = 3ull << 30
static card instances[] = {
    {INSTANCE, .uuid = "MIG-5a1c"}, {INSTANCE, .uuid = "MIG-5b2d", .used = 1 << 28}
};
int nvmlDeviceGetMigMode(card *c, unsigned *now, unsigned *pending)
{
    *now = *pending = c == cards;
    return getenv("NVML_STAND_IN_MIG") ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetMaxMigDeviceCount(card *c, unsigned *count)
{
    (void)c, *count = 7;
    return SUCCESS;
}
int nvmlDeviceGetMigDeviceHandleByIndex(card *c, unsigned number, card **handle)
{
    if (c != cards || number > 2 || number == 1) return NOT_FOUND;
    *handle = &instances[number / 2];
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(card *c, unsigned *id)
{
    *id = 7 + 2 * (unsigned)(c - instances);
    return SUCCESS;
}
int nvmlDeviceGetComputeInstanceId(card *c, unsigned *id)
{
    (void)c, *id = 0;
    return SUCCESS;
}
static int reported(unsigned value, unsigned *found)
{
    *found = value;
    return value ? SUCCESS : NOT_SUPPORTED;
}
int nvmlDeviceGetNumGpuCores(card *c, unsigned *cores) { return reported(c->cores, cores); }
int nvmlDeviceGetTemperature(card *c, int sensor, unsigned *celsius)
{
    (void)sensor;
    return reported(c->celsius, celsius);
}
int nvmlDeviceGetPowerUsage(card *c, unsigned *power) { return reported(c->milliwatts, power); }
int nvmlDeviceGetEnforcedPowerLimit(card *c, unsigned *limit)
{
    return reported(c->limit_milliwatts, limit);
}
int nvmlDeviceGetUtilizationRates(card *c, utilization *rates)
{
    *rates = (utilization){c->percent, 0};
    return c >= cards && c < cards + 2 ? SUCCESS : NOT_SUPPORTED; /* an instance has none */
}
int nvmlDeviceGetClockInfo(card *c, int clock, unsigned *mhz)
{
    return clock == 1 ? reported(c->clock_mhz, mhz) : INVALID_ARGUMENT;
}
int nvmlDeviceGetMaxClockInfo(card *c, int clock, unsigned *mhz)
{
    return clock == 1 ? reported(c->max_clock_mhz, mhz) : INVALID_ARGUMENT;
}
/* What the file says now; whether there is one. */
static int changing(long long ms[2], unsigned long long *reasons)
{
    const char *path = getenv("NVML_STAND_IN_FILE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 0;
    int read = fscanf(file, "%lld %lld %llu", &ms[0], &ms[1], reasons);
    fclose(file);
    return read == 3;
}
int nvmlDeviceGetViolationStatus(card *c, int policy, violation *found)
{
    long long ms[2];
    unsigned long long reasons;
    if (c != cards || policy > 1 || !changing(ms, &reasons) || ms[policy] < 0) return NOT_SUPPORTED;
    *found = (violation){0, 1000000ull * (unsigned long long)ms[policy]};
    return SUCCESS;
}
/* The name that drivers before R535 have; the newer one is absent. */
int nvmlDeviceGetCurrentClocksThrottleReasons(card *c, unsigned long long *reasons)
{
    long long ms[2];
    if (c != cards || !changing(ms, reasons)) *reasons = c->reasons;
    return SUCCESS;
}
