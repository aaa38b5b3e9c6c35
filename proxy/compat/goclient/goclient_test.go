// Package goclient drives the proxy with the official OpenAI client for Go.
package goclient

import (
	"context"
	"errors"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/compat"
)

func TestGoClient(t *testing.T) {
	s := compat.Start(t)
	client := openai.NewClient(option.WithBaseURL(s.URL), option.WithAPIKey("unused"), option.WithMaxRetries(0), option.WithHeader("X-Session-ID", "go"))
	ctx := t.Context()
	ask := openai.ChatCompletionNewParams{Model: "fake", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("question")}}

	chat, err := client.Chat.Completions.New(ctx, ask)
	require.NoError(t, err)
	require.Equal(t, backendtest.Text(4), chat.Choices[0].Message.Content)
	require.EqualValues(t, 0, chat.Usage.PromptTokensDetails.CachedTokens, "the Prefiller had nothing cached")

	stream := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{Model: "fake", Messages: ask.Messages, StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}})
	acc := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		require.True(t, acc.AddChunk(stream.Current()), "chunks of one answer have one id")
	}
	require.NoError(t, stream.Err())
	require.Equal(t, backendtest.Text(4), acc.Choices[0].Message.Content)
	require.EqualValues(t, 4, acc.Usage.CompletionTokens)
	p, local, d := s.Legs()
	require.Equal(t, [3]int{1, 1, 1}, [3]int{p, local, d}, "the second turn was prefilled on the Decoder")

	completion, err := client.Completions.New(ctx, openai.CompletionNewParams{Model: "fake", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("question")}, MaxTokens: openai.Int(3)})
	require.NoError(t, err)
	require.Equal(t, backendtest.Text(3), completion.Choices[0].Text)

	ask.Model = "tools"
	called, err := client.Chat.Completions.New(ctx, ask)
	require.NoError(t, err)
	require.Equal(t, `{"city":"Bern"}`, called.Choices[0].Message.ToolCalls[0].Function.Arguments)

	models, err := client.Models.List(ctx)
	require.NoError(t, err)
	require.Equal(t, "fake", models.Data[0].ID)

	for model, status := range map[string]int{"status400": 400, "status500": 502, "status503": 503} {
		ask.Model = model
		_, err := client.Chat.Completions.New(ctx, ask)
		var api *openai.Error
		require.ErrorAs(t, err, &api, model)
		require.Equal(t, status, api.StatusCode)
		require.NotEmpty(t, api.Message)
		if status == 400 {
			require.Equal(t, "context_length_exceeded", api.Code)
		}
	}

	ask.Model = "cut"
	stream = client.Chat.Completions.NewStreaming(ctx, ask)
	for stream.Next() {
	}
	require.Error(t, stream.Err(), "a stream that was cut is no finished answer")

	ask.Model = "slow"
	cancelled, cancel := context.WithCancel(ctx)
	stream = client.Chat.Completions.NewStreaming(cancelled, ask)
	for range 3 {
		require.True(t, stream.Next())
	}
	cancel()
	for stream.Next() {
	}
	require.ErrorIs(t, stream.Err(), context.Canceled)
	require.NoError(t, errors.Join(stream.Close()))
	compat.Idle(t, s)
}
