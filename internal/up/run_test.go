package up

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/openai"
)

// reply is what the fake server answers: it needs escapes of every kind.
const reply = `it's "fine" \ <ok> & é 🙂`

// chat answers as a server would, and says in its id what it was asked.
func chat(w http.ResponseWriter, r *http.Request) {
	var body struct {
		openai.ChatRequest
		Conversation string `json:"conversation_id"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		openai.BadRequest("", "%v", err).Write(w)
		return
	}
	stop := openai.FinishStop
	last := body.Messages[len(body.Messages)-1]
	if len(body.Messages) == 4 && body.Messages[2].Content != reply {
		openai.BadRequest("messages", "the reply was %q", body.Messages[2].Content).Write(w)
		return
	}
	openai.WriteJSON(w, 200, openai.ChatResponse{
		ID:      fmt.Sprintf("header=%s body=%s messages=%d last=%s", r.Header.Get("X-Session-ID"), body.Conversation, len(body.Messages), last.Content),
		Choices: []openai.ChatChoice{{Message: openai.AnswerMessage{Role: "assistant", Content: reply}, FinishReason: &stop}},
	})
}

func TestTheClusterComesUpAndItsCommandsWorkAsPrinted(t *testing.T) {
	dir := t.TempDir()
	out := new(buffer)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	o := Options{
		Dir: dir, Model: "builtin",
		Cluster: Cluster{Prefiller: Engine{Caching: NoCaching, MaxSeqs: 2}, Decoder: Engine{Ranks: 2, Blocks: 64, Extra: []string{"--enforce-eager"}}, TraceDir: dir},
	}
	go func() { done <- Run(ctx, o, out) }()
	deadline := time.Now().Add(20 * time.Second)
	for !strings.Contains(out.String(), "Ctrl-C ends") {
		select {
		case err := <-done:
			t.Fatalf("the cluster did not stay up: %v\n%s", err, out)
		default:
		}
		require.True(t, time.Now().Before(deadline), out.String())
		time.Sleep(5 * time.Millisecond)
	}
	log, err := os.ReadFile(filepath.Join(dir, "cluster.log"))
	require.NoError(t, err)
	text := string(log)
	require.Contains(t, text, "p0   | [serve --host 127.0.0.1 --port 0 --drain-timeout 5s --max-num-seqs 2 --no-enable-prefix-caching --trace-file "+filepath.Join(dir, "p0.jsonl"))
	require.Contains(t, text, `"kv_role":"kv_producer"`)
	require.Contains(t, text, "--num-kv-blocks 64 --data-parallel-size 2 --enable-prefix-caching --enforce-eager")
	require.Contains(t, text, `"decoder_append_prefill_enable":true`)
	require.Contains(t, text, "--decoder-dp-size 2 --enable-decoder-append-prefill")

	if _, err := exec.LookPath("curl"); err == nil {
		commands := strings.Split(out.String(), "\n\n")
		var answers []string
		for _, c := range commands {
			if !strings.HasPrefix(c, "curl ") {
				continue
			}
			answer, err := exec.Command("sh", "-c", c).CombinedOutput()
			require.NoError(t, err, string(answer))
			answers = append(answers, string(answer))
		}
		require.Len(t, answers, 2)
		require.Contains(t, answers[0], "header=conversation-001 body= messages=4 last=Suggest three improvements.")
		require.Contains(t, answers[1], "header= body=conversation-001 messages=4 last=Suggest three improvements.")
	} else {
		t.Log("curl is not installed: the printed commands were not run")
	}
	cancel()
	require.NoError(t, <-done)
	require.Contains(t, out.String(), "stopping")
}

func TestBothFormsOfTheFollowUpCarryTheSameMessages(t *testing.T) {
	server := &http.Server{Handler: http.HandlerFunc(chat), ReadHeaderTimeout: time.Second}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error)
	go func() { ended <- server.Serve(l) }()
	defer func() {
		require.NoError(t, server.Close())
		require.True(t, errors.Is(<-ended, http.ErrServerClosed))
	}()
	talk, err := Converse(t.Context(), "http://"+l.Addr().String(), "builtin")
	require.NoError(t, err)
	require.Equal(t, reply, talk.Reply)
	require.NotContains(t, string(talk.Body), "'")
	for _, b := range talk.Body {
		require.True(t, b == '\n' || b >= ' ' && b <= '~', "byte %#x may change in a shell or a terminal", b)
	}
	var header, body map[string]any
	require.NoError(t, json.Unmarshal(talk.Body, &header))
	require.NoError(t, json.Unmarshal(talk.RequestFile(), &body))
	require.Equal(t, SessionID, body["conversation_id"])
	delete(body, "conversation_id")
	require.Equal(t, header, body)
	require.Contains(t, talk.HeaderCurl(), "-H 'X-Session-ID: conversation-001'")
	require.NotContains(t, talk.BodyCurl("request.json"), "X-Session-ID")
}

func TestATakenPortIsAClearError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	var out bytes.Buffer
	err = Run(t.Context(), Options{Dir: t.TempDir(), Cluster: Cluster{Port: l.Addr().(*net.TCPAddr).Port}}, &out)
	require.ErrorContains(t, err, "the proxy's port is taken")
}

func TestADeadClusterIsAnError(t *testing.T) {
	out := new(buffer)
	done := make(chan error)
	go func() { done <- Run(t.Context(), Options{Dir: t.TempDir(), Model: "builtin"}, out) }()
	var url string
	for deadline := time.Now().Add(20 * time.Second); url == ""; time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), out.String())
		if text := out.String(); strings.Contains(text, "Ctrl-C ends") {
			for _, line := range strings.Split(text, "\n") {
				if f := strings.Fields(line); len(f) == 4 && f[0] == "d0" {
					url = f[1]
				}
			}
		}
	}
	if resp, err := http.Get(url + "/crash"); err == nil {
		require.NoError(t, resp.Body.Close())
	}
	http.DefaultClient.CloseIdleConnections()
	require.ErrorContains(t, <-done, "d0 ended early")
}
