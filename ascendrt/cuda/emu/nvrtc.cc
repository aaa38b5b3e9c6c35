// A libnvrtc.so of ours: its cubin is the source behind an ELF magic, and a
// source that holds "#error" does not compile.
#include <cstring>
#include <string>

struct _nvrtcProgram { std::string source, name, log; };
#define API extern "C" __attribute__((visibility("default")))
static const char magic[] = "\x7f" "ELF emulated cubin, padded so that it is longer than a header of 64 bytes\n";

API unsigned nvrtcVersion(int *major, int *minor) { *major = 13, *minor = 0; return 0; }
API const char *nvrtcGetErrorString(unsigned rc) { return rc == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }
API unsigned nvrtcCreateProgram(_nvrtcProgram **p, const char *src, const char *name, int, const char *const *, const char *const *) {
	*p = new _nvrtcProgram{ src, name ? name : "", "" };
	return 0;
}
API unsigned nvrtcCompileProgram(_nvrtcProgram *p, int, const char *const *) {
	size_t at = p->source.find("#error");
	if (at == std::string::npos) return 0;
	p->log = p->name + ": error: " + p->source.substr(at, p->source.find('\n', at) - at);
	return 6;
}
API unsigned nvrtcGetCUBINSize(_nvrtcProgram *p, size_t *n) { *n = sizeof magic + p->source.size(); return 0; }
API unsigned nvrtcGetCUBIN(_nvrtcProgram *p, char *out) {
	std::memcpy(out, magic, sizeof magic);
	std::memcpy(out + sizeof magic, p->source.data(), p->source.size());
	return 0;
}
API unsigned nvrtcGetProgramLogSize(_nvrtcProgram *p, size_t *n) { *n = p->log.size() + 1; return 0; }
API unsigned nvrtcGetProgramLog(_nvrtcProgram *p, char *out) { std::strcpy(out, p->log.c_str()); return 0; }
API unsigned nvrtcDestroyProgram(_nvrtcProgram **p) { delete *p; *p = nullptr; return 0; }
