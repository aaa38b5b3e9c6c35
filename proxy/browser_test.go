package proxy

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// browser is a page of a headless Chromium, driven over its DevTools pipe.
type browser struct {
	t       *testing.T
	in      *os.File
	out     *bufio.Reader
	session string
	id      int
}

// open starts a Chromium with one page.
func open(t *testing.T, url string) *browser {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser takes seconds")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed")
	}
	theirIn, in, err := os.Pipe()
	require.NoError(t, err)
	out, theirOut, err := os.Pipe()
	require.NoError(t, err)
	cmd := exec.Command(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir="+t.TempDir(), "--window-size=1200,900", "--remote-debugging-pipe")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // 3 and 4
	require.NoError(t, cmd.Start())
	require.NoError(t, theirIn.Close())
	require.NoError(t, theirOut.Close())
	require.NoError(t, out.SetReadDeadline(time.Now().Add(2*time.Minute)))
	b := &browser{t: t, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		_, _ = in.WriteString(`{"id":0,"method":"Browser.close"}` + "\x00")
		done := make(chan struct{})
		go func() { _ = cmd.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
		_ = in.Close()
		_ = out.Close()
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": url}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	return b
}

// call waits for the result of a command; events are passed over.
func (b *browser) call(method string, params any, result any) {
	b.t.Helper()
	b.id++
	message := map[string]any{"id": b.id, "method": method, "params": params}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	raw, err := json.Marshal(message)
	require.NoError(b.t, err)
	_, err = b.in.Write(append(raw, 0))
	require.NoError(b.t, err)
	for {
		raw, err := b.out.ReadBytes(0)
		require.NoError(b.t, err)
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		require.NoError(b.t, json.Unmarshal(bytes.TrimSuffix(raw, []byte{0}), &answer))
		if answer.ID != b.id {
			continue
		}
		require.Nil(b.t, answer.Error, "%s: %s", method, raw)
		if result != nil {
			require.NoError(b.t, json.Unmarshal(answer.Result, result))
		}
		return
	}
}

// value evaluates an expression in the page.
func (b *browser) value(expression string) any {
	b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails any
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &r)
	require.Nil(b.t, r.ExceptionDetails, expression)
	return r.Result.Value
}

// until waits for an expression to become true.
func (b *browser) until(expression string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool { return b.value(expression) == true }, time.Minute, 20*time.Millisecond, expression)
}

// press types on the keyboard: a named key, or a text.
func (b *browser) press(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		k, named := map[string]map[string]any{
			"Tab": {"key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}, "Enter": {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"},
			"Space": {"key": " ", "code": "Space", "windowsVirtualKeyCode": 32, "text": " "},
		}[key]
		if !named {
			b.call("Input.insertText", map[string]any{"text": key}, nil)
			continue
		}
		for _, kind := range []string{"keyDown", "keyUp"} {
			k["type"] = kind
			b.call("Input.dispatchKeyEvent", k, nil)
		}
	}
}

// The status page is used by keyboard alone: the token is asked for, a wrong one
// may be mended, the skip link leads to the instances, and the updates pause.
func TestStatusPageByKeyboard(t *testing.T) {
	c := start(t, setup{decoders: 2})
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	b := open(t, c.adminURL("secret")+"/ui")
	b.until(`document.activeElement && document.activeElement.id === "token"`)
	b.press("wrong", "Enter")
	b.until(`!document.getElementById("problem").hidden && document.activeElement.id === "token"`)
	require.Equal(t, "This token is not accepted.", b.value(`document.getElementById("problem").textContent`))
	b.value(`document.getElementById("token").value = ""`)
	b.press("secret", "Enter")
	b.until(`!document.getElementById("content").hidden && document.getElementById("login").hidden`)
	require.Contains(t, b.value(`document.getElementById("decoders").textContent`), c.d[1].Addr)

	// From the page's start: the skip link, then the button; each shows its focus.
	seen := map[string]bool{}
	for range 12 {
		b.press("Tab")
		name, _ := b.value(`(e => e === document.body ? "" : e.id || e.className)(document.activeElement)`).(string)
		if name == "" {
			continue
		}
		require.Equal(t, true, b.value(`(s => s.outlineStyle === "solid" && parseFloat(s.outlineWidth) >= 2)(getComputedStyle(document.activeElement))`), name)
		switch {
		case name == "skip" && !seen[name]:
			require.Equal(t, true, b.value(`(r => r.left >= 0 && r.top >= 0)(document.activeElement.getBoundingClientRect())`), "the skip link is seen while it has the focus")
			b.press("Enter")
			require.Equal(t, "#instances", b.value(`location.hash`))
			require.Equal(t, "instances", b.value(`document.activeElement.id`))
			b.value(`document.querySelector(".skip").focus()`)
		case name == "pause" && !seen[name]:
			b.press("Space")
			require.Equal(t, "true", b.value(`document.activeElement.getAttribute("aria-pressed")`))
			require.Equal(t, "Go on", b.value(`document.activeElement.textContent`))
			at := b.value(`document.getElementById("state").textContent`)
			c.post(chatPath, turnBody(2, ""), "X-Session-ID", "s")
			time.Sleep(1500 * time.Millisecond) // it is updated every second
			require.Equal(t, at, b.value(`document.getElementById("state").textContent`), "nothing moves while it pauses")
			b.press("Enter")
			require.Equal(t, "false", b.value(`document.activeElement.getAttribute("aria-pressed")`))
			b.until(`document.getElementById("last").rows.length === 2`)
		}
		seen[name] = true
	}
	require.True(t, seen["skip"] && seen["pause"], "%v", seen)
	require.Equal(t, float64(0), b.value(`document.querySelectorAll("[tabindex]:not([tabindex='-1']):not([tabindex='0'])").length`), "the order of the page is that of the keyboard")
	require.Equal(t, true, b.value(`[...document.querySelectorAll("input")].every(i => i.labels.length > 0) && [...document.querySelectorAll("table")].every(t => t.caption)`), "fields and tables have names")
}

// Light and dark are two pages, and each can be read: every text has the
// contrast of 4.5 to what is behind it.
func TestStatusPageColours(t *testing.T) {
	c := start(t, setup{decoders: 2})
	for range 2 {
		c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	}
	c.d[0].Evict("s")
	c.d[1].Evict("s")
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	b := open(t, c.adminURL("secret")+"/ui#token=secret")
	b.until(`!!document.getElementById("content") && !document.getElementById("content").hidden`)
	grounds := map[string]any{}
	for _, scheme := range []string{"light", "dark"} {
		b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
		grounds[scheme] = b.value(`getComputedStyle(document.body).backgroundColor`)
		poor, _ := b.value(poorContrast).(string)
		require.Empty(t, poor, scheme)
	}
	require.NotEqual(t, grounds["light"], grounds["dark"])
	texts, _ := b.value(strings.Replace(poorContrast, `poor.join("; ")`, "texts", 1)).(float64)
	require.Greater(t, texts, 40.0)
}

// poorContrast lists the texts of the page that are hard to read.
const poorContrast = `(() => {
	const parse = s => s.match(/[\d.]+/g).map(Number);
	const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
	const ground = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
	const poor = []; let texts = 0;
	for (const e of document.querySelectorAll("body *")) {
		if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || !e.checkVisibility()) continue;
		texts++;
		const a = light(parse(getComputedStyle(e).color).slice(0, 3)), b = light(ground(e));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
		if (ratio < 4.5) poor.push(e.textContent + " " + ratio.toFixed(2));
	}
	return poor.join("; ");
})()`
