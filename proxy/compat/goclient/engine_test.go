package goclient

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"
)

// cluster starts a Prefiller, a Decoder with two ranks and the proxy as
// processes, all of them real, and gives the URL of the API.
func cluster(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "sluice")
	build := exec.Command("go", "build", "-o", bin, "./cmd/sluice")
	build.Dir = filepath.Join("..", "..", "..")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	up := exec.Command(bin, "up", "--port", strconv.Itoa(port), "--dir", filepath.Join(t.TempDir(), "up"), "--ready-timeout", "2m")
	var said bytes.Buffer
	up.Stdout, up.Stderr = &said, &said
	require.NoError(t, up.Start())
	ended := make(chan error, 1)
	go func() { ended <- up.Wait() }()
	t.Cleanup(func() {
		_ = up.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-ended:
		case <-time.After(time.Minute):
			_ = up.Process.Kill()
			<-ended
		}
	})
	return "http://127.0.0.1:" + strconv.Itoa(port) + "/v1"
}

// The client talks to the proxy in front of this project's engines: turns of a
// conversation, a stream, a completion, an error and a cancellation.
func TestGoClientWithEngines(t *testing.T) {
	url := cluster(t)
	client := openai.NewClient(option.WithBaseURL(url), option.WithAPIKey("unused"), option.WithMaxRetries(0), option.WithHeader("X-Session-ID", "go"))
	ctx := t.Context()
	var model string
	require.Eventually(t, func() bool {
		models, err := client.Models.List(ctx)
		if err != nil || len(models.Data) == 0 {
			return false
		}
		model = models.Data[0].ID
		return true
	}, 2*time.Minute, 100*time.Millisecond)

	history := []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("You answer briefly."), openai.UserMessage("Tell me about " + strings.Repeat("rivers and lakes and ", 40) + "seas.")}
	ask := openai.ChatCompletionNewParams{Model: model, Messages: history, MaxTokens: openai.Int(8), Temperature: openai.Float(0)}
	first, err := client.Chat.Completions.New(ctx, ask)
	require.NoError(t, err)
	require.EqualValues(t, 8, first.Usage.CompletionTokens)

	// The second turn repeats the first with its answer: the Decoder has it.
	ask.Messages = append(history, openai.AssistantMessage(first.Choices[0].Message.Content), openai.UserMessage("And then?"))
	ask.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	stream := client.Chat.Completions.NewStreaming(ctx, ask)
	acc := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		require.True(t, acc.AddChunk(stream.Current()), "chunks of one answer have one id")
	}
	require.NoError(t, stream.Err())
	require.EqualValues(t, 8, acc.Usage.CompletionTokens)
	require.Greater(t, acc.Usage.PromptTokensDetails.CachedTokens, first.Usage.PromptTokens/2, "most of the prompt was there")

	completion, err := client.Completions.New(ctx, openai.CompletionNewParams{Model: openai.CompletionNewParamsModel(model), Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon a time")}, MaxTokens: openai.Int(3)})
	require.NoError(t, err)
	require.EqualValues(t, 3, completion.Usage.CompletionTokens)

	ask.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
	ask.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(strings.Repeat("word ", 200_000))}
	_, err = client.Chat.Completions.New(ctx, ask)
	var api *openai.Error
	require.ErrorAs(t, err, &api)
	require.Equal(t, 400, api.StatusCode)
	require.NotEmpty(t, api.Message)

	ask.Messages, ask.MaxTokens = history, openai.Int(2000)
	cancelled, cancel := context.WithCancel(ctx)
	stream = client.Chat.Completions.NewStreaming(cancelled, ask)
	require.True(t, stream.Next())
	cancel()
	for stream.Next() {
	}
	if err := stream.Err(); err != nil { // a fast engine may have been done
		require.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, errors.Join(stream.Close()))
	again, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: model, Messages: history, MaxTokens: openai.Int(4)})
	require.NoError(t, err, "the cluster goes on")
	require.EqualValues(t, 4, again.Usage.CompletionTokens)
}
