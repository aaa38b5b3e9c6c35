package proxy

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// browse opens the status page in a headless Chromium and gives its document
// after the script has run. SLUICE_SCREENSHOTS names a folder for pictures.
func browse(t *testing.T, url, name string, flags ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser takes seconds")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	args := append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=" + t.TempDir(), "--virtual-time-budget=4000", "--window-size=1200,900"}, flags...)
	if dir := os.Getenv("SLUICE_SCREENSHOTS"); dir != "" {
		shot := exec.CommandContext(ctx, chromium, append(args, "--screenshot="+filepath.Join(dir, name+".png"), url)...)
		out, err := shot.CombinedOutput()
		require.NoError(t, err, string(out))
	}
	out, err := exec.CommandContext(ctx, chromium, append(args, "--dump-dom", url)...).Output()
	require.NoError(t, err)
	return string(out)
}

// adminURL serves the admin surface.
func (c *cluster) adminURL(token string) string {
	c.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(c.t, err)
	srv := &http.Server{Handler: c.proxy.Admin(token)}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	c.t.Cleanup(func() { srv.Close(); <-done })
	return "http://" + l.Addr().String()
}

// The status page shows instances, decisions and fallbacks to who has the
// token, and nothing to who has not.
func TestStatusPage(t *testing.T) {
	c := start(t, setup{decoders: 2, ranks: 2})
	for range 3 {
		c.post(chatPath, turnBody(1, ""), "X-Session-ID", "<b>private</b>")
	}
	for _, b := range c.d {
		b.Evict("<b>private</b>")
	}
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "<b>private</b>")
	url := c.adminURL("secret") + "/ui"

	page := browse(t, url+"#token=secret", "status-light")
	require.Contains(t, page, c.d[0].Addr)
	require.Contains(t, page, c.p[0].Addr)
	require.Contains(t, page, "refused:no_prefix")
	require.Contains(t, page, "up since")
	require.Regexp(t, regexp.MustCompile(`<b>2</b><span class="soft">local hits`), page)
	require.NotContains(t, page, "private")
	if os.Getenv("SLUICE_SCREENSHOTS") != "" {
		browse(t, url+"#token=secret", "status-dark", "--blink-settings=preferredColorScheme=0")
	}
	page = browse(t, url+"#token=wrong", "status-refused")
	require.Contains(t, page, "This token is not accepted.")
	require.NotContains(t, page, c.d[0].Addr)
}
