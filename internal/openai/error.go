package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// Values of an error's type.
const (
	TypeInvalidRequest = "invalid_request_error"
	TypeAuthentication = "authentication_error"
	TypeNotFound       = "not_found_error"
	TypeRateLimit      = "rate_limit_error"
	TypeServer         = "server_error"
	TypeUpstream       = "upstream_error"
	TypeUnavailable    = "service_unavailable_error"
)

// Error is an error answer: the HTTP status and the body in OpenAI's shape. It
// is a Go error, so that a handler can return it.
type Error struct {
	Status  int // HTTP status
	Message string
	Type    string
	Param   string // the request member at fault; empty encodes as null
	Code    string // machine-readable reason; empty encodes as null

	RetryAfter int // seconds, sent as the Retry-After header when above 0

	// Refusal carries the counts of a refused append-prefill attempt.
	Refusal *RefusalCounts
}

// RefusalCounts are the token counts of a refused append-prefill attempt.
type RefusalCounts struct {
	PromptTokens int
	CachedTokens int
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%s, status %d)", e.Message, e.Type, e.Status) }

type errorDetail struct {
	Message      string  `json:"message"`
	Type         string  `json:"type"`
	Param        *string `json:"param"`
	Code         *string `json:"code"`
	PromptTokens *int    `json:"prompt_tokens,omitempty"`
	CachedTokens *int    `json:"cached_tokens,omitempty"`
}

// MarshalJSON writes {"error":{"message","type","param","code"}}.
func (e *Error) MarshalJSON() ([]byte, error) {
	d := errorDetail{Message: e.Message, Type: e.Type}
	if e.Param != "" {
		d.Param = &e.Param
	}
	if e.Code != "" {
		d.Code = &e.Code
	}
	if e.Refusal != nil {
		d.PromptTokens, d.CachedTokens = &e.Refusal.PromptTokens, &e.Refusal.CachedTokens
	}
	return json.Marshal(struct {
		Error errorDetail `json:"error"`
	}{d})
}

// ParseError reads an error body; it accepts a numeric code and a missing
// wrapper member, as several servers send. False when the body is no error.
func ParseError(status int, body []byte) (*Error, bool) {
	type detail struct {
		Message      string          `json:"message"`
		Type         string          `json:"type"`
		Param        json.RawMessage `json:"param"`
		Code         json.RawMessage `json:"code"`
		PromptTokens *int            `json:"prompt_tokens"`
		CachedTokens *int            `json:"cached_tokens"`
	}
	var wrapped struct {
		Error *detail `json:"error"`
	}
	d := &detail{}
	if err := json.Unmarshal(body, &wrapped); err == nil && wrapped.Error != nil {
		d = wrapped.Error
	} else if err := json.Unmarshal(body, d); err != nil || (d.Message == "" && d.Type == "") {
		return nil, false
	}
	e := &Error{Status: status, Message: d.Message, Type: d.Type, Param: scalar(d.Param), Code: scalar(d.Code)}
	if d.PromptTokens != nil || d.CachedTokens != nil {
		e.Refusal = &RefusalCounts{}
		if d.PromptTokens != nil {
			e.Refusal.PromptTokens = *d.PromptTokens
		}
		if d.CachedTokens != nil {
			e.Refusal.CachedTokens = *d.CachedTokens
		}
	}
	return e, true
}

// scalar gives a JSON string's text, null as empty and any other value as written.
func scalar(raw json.RawMessage) string {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// Write sends the error as the whole answer.
func (e *Error) Write(w http.ResponseWriter) {
	if e.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.RetryAfter))
	}
	WriteJSON(w, e.Status, e)
}

// WriteJSON sends v as the whole answer. A value that cannot be encoded is a
// programming error and answers 500.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		body, status = []byte(`{"error":{"message":"the answer could not be encoded","type":"server_error","param":null,"code":null}}`), http.StatusInternalServerError
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone away is noticed by its context
}

// BadRequest is a 400: the client must change the request. param names the member at fault.
func BadRequest(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: TypeInvalidRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}

// TooLong is a 400 with code context_length_exceeded: the prompt, or the prompt
// with its outputs, does not fit the model.
func TooLong(param, format string, args ...any) *Error {
	e := BadRequest(param, format, args...)
	e.Code = "context_length_exceeded"
	return e
}

// Unauthorized is a 401: the API key is missing or wrong.
func Unauthorized() *Error {
	return &Error{Status: http.StatusUnauthorized, Type: TypeAuthentication, Code: "invalid_api_key", Message: "the API key is missing or not accepted here"}
}

// NoModel is a 404 with code model_not_found.
func NoModel(model string) *Error {
	return &Error{Status: http.StatusNotFound, Type: TypeNotFound, Param: "model", Code: "model_not_found",
		Message: fmt.Sprintf("the model %q does not exist here", model)}
}

// NotFound is a 404 for a path or an object.
func NotFound(format string, args ...any) *Error {
	return &Error{Status: http.StatusNotFound, Type: TypeNotFound, Message: fmt.Sprintf(format, args...)}
}

// MethodNotAllowed is a 405.
func MethodNotAllowed(method, path string) *Error {
	return &Error{Status: http.StatusMethodNotAllowed, Type: TypeInvalidRequest, Message: fmt.Sprintf("%s is not allowed on %s", method, path)}
}

// BodyTooLarge is a 413 for a body above the limit in bytes.
func BodyTooLarge(limit int64) *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Type: TypeInvalidRequest, Code: "body_too_large",
		Message: fmt.Sprintf("the body is longer than %d bytes", limit)}
}

// TooMany is a 429; retry is the advice in seconds.
func TooMany(retry int, format string, args ...any) *Error {
	return &Error{Status: http.StatusTooManyRequests, Type: TypeRateLimit, RetryAfter: retry, Message: fmt.Sprintf(format, args...)}
}

// Internal is a 500.
func Internal(format string, args ...any) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: TypeServer, Message: fmt.Sprintf(format, args...)}
}

// BadGateway is a 502: a backend failed or answered nonsense.
func BadGateway(format string, args ...any) *Error {
	return &Error{Status: http.StatusBadGateway, Type: TypeUpstream, Message: fmt.Sprintf(format, args...)}
}

// Unavailable is a 503: try again later; retry is the advice in seconds.
func Unavailable(retry int, format string, args ...any) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: TypeUnavailable, RetryAfter: retry, Message: fmt.Sprintf(format, args...)}
}
