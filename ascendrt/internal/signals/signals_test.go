package signals

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

const program = `
#include "guard.h"
#include <stdio.h>

static void own(int s) { (void)s; }
static void foreign(int s) { (void)s; }

static void set(int sig, void (*f)(int), int flags) {
	struct sigaction a = { .sa_handler = f, .sa_flags = flags };
	sigaction(sig, &a, NULL);
}

static int has(int sig, void (*f)(int)) {
	struct sigaction a;
	sigaction(sig, NULL, &a);
	return a.sa_handler == f;
}

static int blocked(int sig) {
	sigset_t now;
	pthread_sigmask(SIG_SETMASK, NULL, &now);
	return sigismember(&now, sig);
}

#define CHECK(x) do { if (!(x)) { printf("not so: %s\n", #x); return 1; } } while (0)

int main(void) {
	set(SIGSEGV, own, SA_ONSTACK);
	set(SIGTERM, own, SA_ONSTACK);
	set(SIGPROF, own, SA_ONSTACK);
	guard g;
	guard_begin(&g);
	CHECK(blocked(SIGPROF) && blocked(SIGURG));
	CHECK(!blocked(SIGSEGV)); // a fault of the library itself
	set(SIGSEGV, foreign, 0);
	set(SIGTERM, foreign, SA_ONSTACK);
	set(SIGUSR1, foreign, 0); // nobody's before
	CHECK(guard_end(&g) == 1);
	CHECK(has(SIGSEGV, own));
	CHECK(has(SIGTERM, foreign)); // does no harm
	CHECK(has(SIGPROF, own));
	CHECK(has(SIGUSR1, foreign));
	CHECK(!blocked(SIGPROF) && !blocked(SIGURG));
	printf("ok\n");
	return 0;
}
`

func TestGuard(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil || runtime.GOOS != "linux" {
		t.Skip("no C compiler, or not on Linux")
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"guard.h": Header, "main.c": program} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	bin := filepath.Join(dir, "main")
	out, err := exec.Command(cc, "-std=gnu11", "-Wall", "-Wextra", "-Werror", filepath.Join(dir, "main.c"), "-o", bin, "-lpthread").CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(bin).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "ok\n", string(out))
}
