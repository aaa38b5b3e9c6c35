package up

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// The test binary is its own child: a first argument that starts with "child-"
// says how it behaves; "serve" and "proxy" stand for the real commands.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		os.Exit(child(os.Args[1]))
	}
	goleak.VerifyTestMain(m)
}

func child(mode string) int {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	switch mode {
	case "child-dies":
		fmt.Println("loading")
		fmt.Fprintln(os.Stderr, "error: no such model")
		return 3
	case "child-silent":
		<-term
		return 0
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	ready := time.Now().Add(50 * time.Millisecond)
	crash := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) {
		if time.Now().Before(ready) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("/crash", func(http.ResponseWriter, *http.Request) { close(crash) })
	mux.HandleFunc("/v1/chat/completions", chat)
	go http.Serve(l, mux) //nolint:errcheck // ends with the process
	fmt.Printf("%s\nlistening on http://%s\n", os.Args[1:], l.Addr())
	for {
		select {
		case <-crash:
			fmt.Print("device lost")
			return 75
		case <-term:
			fmt.Println("got SIGTERM")
			if mode != "child-stubborn" {
				return 0
			}
		}
	}
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func supervisor(t *testing.T, cfg Config) (*Supervisor, *buffer) {
	t.Helper()
	log := new(buffer)
	cfg.Log = NewLog(log)
	s, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.StopAll() })
	return s, log
}

func TestAChildIsReadyWhenItsHealthSaysSo(t *testing.T) {
	s, log := supervisor(t, Config{})
	c, err := s.Start(t.Context(), Command{Name: "d0", Args: []string{"child-serves"}})
	require.NoError(t, err)
	require.Regexp(t, `^http://127\.0\.0\.1:\d+$`, c.URL())
	resp, err := http.Get(c.URL() + "/health")
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 200, resp.StatusCode)
	require.Positive(t, c.PeakMemory())
	require.NoError(t, s.Stop(c))
	require.Positive(t, c.PeakMemory(), "the peak survives the process")
	require.Contains(t, log.String(), "d0   | listening on http://")
	require.Contains(t, log.String(), "d0   | got SIGTERM")
	require.Error(t, syscall.Kill(c.PID(), 0), "the process is gone and reaped")
	require.NoError(t, s.Stop(c), "stopping twice is harmless")
	http.DefaultClient.CloseIdleConnections()
}

func TestADeathBeforeReadinessIsAnErrorWithTheOutput(t *testing.T) {
	s, _ := supervisor(t, Config{})
	_, err := s.Start(t.Context(), Command{Name: "p0", Args: []string{"child-dies"}})
	var death *EarlyDeath
	require.ErrorAs(t, err, &death)
	require.Equal(t, "p0", death.Name)
	require.ErrorContains(t, err, "exit status 3")
	require.ErrorContains(t, err, "no such model")
}

func TestADeathLaterIsNoticed(t *testing.T) {
	s, _ := supervisor(t, Config{})
	c, err := s.Start(t.Context(), Command{Name: "d0", Args: []string{"child-serves"}})
	require.NoError(t, err)
	_, err = http.Get(c.URL() + "/crash")
	http.DefaultClient.CloseIdleConnections()
	if err == nil {
		t.Log("the crash was answered before the process ended")
	}
	select {
	case err := <-s.Deaths():
		require.ErrorContains(t, err, "exit status 75")
		require.ErrorContains(t, err, "device lost", "a last line without its end is kept")
	case <-time.After(10 * time.Second):
		t.Fatal("the death was not noticed")
	}
	require.NoError(t, s.StopAll())
}

func TestAStubbornChildIsKilled(t *testing.T) {
	s, _ := supervisor(t, Config{Grace: 30 * time.Millisecond})
	c, err := s.Start(t.Context(), Command{Name: "x", Args: []string{"child-stubborn"}})
	require.NoError(t, err)
	err = s.StopAll()
	require.ErrorContains(t, err, "was killed")
	require.Error(t, syscall.Kill(c.PID(), 0))
	select {
	case err := <-s.Deaths():
		t.Fatalf("a stopped child is no early death: %v", err)
	default:
	}
}

func TestReadinessHasADeadlineAndCanBeCancelled(t *testing.T) {
	s, _ := supervisor(t, Config{ReadyTimeout: 50 * time.Millisecond})
	_, err := s.Start(t.Context(), Command{Name: "mute", Args: []string{"child-silent"}})
	require.ErrorContains(t, err, "mute is not ready after 50ms")

	patient, _ := supervisor(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = patient.Start(ctx, Command{Name: "mute", Args: []string{"child-silent"}})
	require.ErrorIs(t, err, context.Canceled)
}

func TestUnknownExecutable(t *testing.T) {
	s, _ := supervisor(t, Config{Executable: "/nonexistent/sluice"})
	_, err := s.Start(t.Context(), Command{Name: "p0"})
	require.ErrorContains(t, err, "start p0")
}

func TestChildrenEndInReverseOrder(t *testing.T) {
	s, log := supervisor(t, Config{})
	for _, name := range []string{"p0", "d0", "proxy"} {
		_, err := s.Start(t.Context(), Command{Name: name, Args: []string{"child-serves"}})
		require.NoError(t, err)
	}
	require.NoError(t, s.StopAll())
	text := log.String()
	at := func(name string) int {
		return strings.Index(text, name+strings.Repeat(" ", 5-len(name))+" | got SIGTERM")
	}
	require.Positive(t, at("proxy"))
	require.Less(t, at("proxy"), at("d0"))
	require.Less(t, at("d0"), at("p0"))
}
