/* A libnvidia-ml.so.1 that says what a file tells it to.
 *
 * The file named by NVML_STUB holds lines of `key value`, read again at every call, so a test can change its mind while
 * the library is in use. Keys: `init`, `count`; per GPU `0.used` and `0.total` (bytes), `0.utilisation`,
 * `0.temperature`, `0.power`, and for its processes `0.compute.PID` and `0.graphics.PID` (bytes). A key with `.error`
 * behind it (`0.power.error 3`) gives the return code of that call; `0.error` that of every call about the GPU.
 * Counterpart: tests/router/test_gpus.py. Types and codes are those of nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int index; } gpu;
typedef struct { unsigned int gpu, memory; } utilisation;
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu_instance, compute_instance; } process;

static gpu gpus[16];
static int opened;

static int look(const char *key, unsigned long long *value) {
    char line[256], name[200];
    unsigned long long found;
    const char *path = getenv("NVML_STUB");
    FILE *file = path ? fopen(path, "r") : NULL;
    int hit = 0;
    if (!file) return 0;
    while (!hit && fgets(line, sizeof line, file))
        if (sscanf(line, "%199s %llu", name, &found) == 2 && !strcmp(name, key)) { *value = found; hit = 1; }
    fclose(file);
    return hit;
}

static unsigned long long value_of(const char *key, unsigned long long fallback) {
    look(key, &fallback);
    return fallback;
}

/* The return code for a call about `what` of a GPU. */
static int verdict(const gpu *device, const char *what) {
    char key[128];
    int code = (int)value_of("driver.error", 0);
    if (!opened) return 1; /* uninitialized */
    if (code) return code;
    snprintf(key, sizeof key, "%d.error", device->index);
    code = (int)value_of(key, 0);
    if (code) return code;
    snprintf(key, sizeof key, "%d.%s.error", device->index, what);
    return (int)value_of(key, 0);
}

static unsigned long long number(const gpu *device, const char *what) {
    char key[128];
    snprintf(key, sizeof key, "%d.%s", device->index, what);
    return value_of(key, 0);
}

int nvmlInitWithFlags(unsigned int flags) {
    unsigned long long code;
    (void)flags;
    if (!look("init", &code)) return 9; /* driver not loaded */
    if (code) return (int)code;
    opened = 1;
    return 0;
}

int nvmlShutdown(void) { opened = 0; return 0; }

const char *nvmlErrorString(int code) { (void)code; return "stub error"; }

int nvmlDeviceGetCount_v2(unsigned int *count) {
    int code = (int)value_of("driver.error", 0);
    if (!opened) return 1;
    *count = (unsigned int)value_of("count", 0);
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, gpu **device) {
    if (index >= 16) return 2;
    gpus[index].index = (int)index;
    *device = &gpus[index];
    return verdict(*device, "handle");
}

int nvmlDeviceGetUUID(const gpu *device, char *text, unsigned int size) {
    snprintf(text, size, "GPU-%08d-stub", device->index);
    return verdict(device, "uuid");
}

int nvmlDeviceGetName(const gpu *device, char *text, unsigned int size) {
    snprintf(text, size, "Stub %d", device->index);
    return verdict(device, "name");
}

int nvmlDeviceGetUtilizationRates(const gpu *device, utilisation *out) {
    out->gpu = (unsigned int)number(device, "utilisation");
    out->memory = 0;
    return verdict(device, "utilisation");
}

int nvmlDeviceGetMemoryInfo(const gpu *device, memory_v1 *out) {
    out->total = number(device, "total");
    out->used = number(device, "used");
    out->free = out->total - out->used;
    return verdict(device, "memory");
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(const gpu *device, memory_v2 *out) {
    out->total = number(device, "total");
    out->used = number(device, "used");
    out->reserved = 0;
    out->free = out->total - out->used;
    return verdict(device, "memory");
}
#endif

int nvmlDeviceGetTemperature(const gpu *device, unsigned int sensor, unsigned int *out) {
    (void)sensor;
    *out = (unsigned int)number(device, "temperature");
    return verdict(device, "temperature");
}

int nvmlDeviceGetPowerUsage(const gpu *device, unsigned int *out) {
    *out = (unsigned int)number(device, "power");
    return verdict(device, "power");
}

static int processes(const gpu *device, const char *kind, unsigned int *count, process *out) {
    char line[256], prefix[64];
    unsigned int pid, found = 0, room = *count;
    unsigned long long used;
    int code = verdict(device, kind);
    FILE *file;
    if (code) return code;
    file = fopen(getenv("NVML_STUB"), "r");
    if (!file) return 999;
    snprintf(prefix, sizeof prefix, "%d.%s.", device->index, kind);
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, prefix, strlen(prefix)) || sscanf(line + strlen(prefix), "%u %llu", &pid, &used) != 2) continue;
        if (found < room && out) { memset(&out[found], 0, sizeof *out); out[found].pid = pid; out[found].used = used; }
        found++;
    }
    fclose(file);
    *count = found;
    return found > room ? 7 : 0; /* insufficient size */
}

#ifdef OLD_DRIVER
#define COMPUTE nvmlDeviceGetComputeRunningProcesses_v2
#define GRAPHICS nvmlDeviceGetGraphicsRunningProcesses_v2
#else
#define COMPUTE nvmlDeviceGetComputeRunningProcesses_v3
#define GRAPHICS nvmlDeviceGetGraphicsRunningProcesses_v3
#endif

int COMPUTE(const gpu *device, unsigned int *count, process *out) { return processes(device, "compute", count, out); }
int GRAPHICS(const gpu *device, unsigned int *count, process *out) { return processes(device, "graphics", count, out); }
