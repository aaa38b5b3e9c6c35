package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/scheduler"
)

// Server answers HTTP for one engine.
type Server struct {
	engine *engine.Engine
	log    *slog.Logger
	noise  Noise
	mux    *http.ServeMux
}

// Noise says whether requests may ask for wrong KV.
type Noise uint8

const (
	// NoiseRefused answers 400 to kv_noise.
	NoiseRefused Noise = iota
	// NoiseAllowed lets a request with "kv_noise": true run on one block that
	// was overwritten, so that a check of token identity can show that it would
	// notice. The block stays wrong for all that share it.
	NoiseAllowed
)

// Options are the choices of a server.
type Options struct {
	Logger *slog.Logger // nil: silent
	Noise  Noise
}

// New makes the handler of an engine, which stays the caller's.
func New(e *engine.Engine, o Options) *Server {
	s := &Server{engine: e, log: o.Logger, noise: o.Noise, mux: http.NewServeMux()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	metrics := promhttp.HandlerFor(e.Metrics(), promhttp.HandlerOpts{EnableOpenMetrics: true})
	s.route("/v1/completions", http.MethodPost, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, s.readCompletion) })
	s.route("/v1/chat/completions", http.MethodPost, func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, s.readChat) })
	s.route("/v1/models", http.MethodGet, s.models)
	s.route("/v1/models/{id}", http.MethodGet, s.modelByName)
	s.route("/health", http.MethodGet, s.health)
	s.route("/ping", http.MethodGet, s.health)
	s.route("/metrics", http.MethodGet, metrics.ServeHTTP)
	s.route("/reset_prefix_cache", http.MethodPost, s.reset)
	s.route("/v1/sessions/{id}", http.MethodDelete, s.endSession)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		openai.NotFound("there is no %s here", r.URL.Path).Write(w)
	})
	return s
}

// route serves one method of a path; others answer 405.
func (s *Server) route(path, method string, h http.HandlerFunc) {
	s.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method && !(method == http.MethodGet && r.Method == http.MethodHead) {
			w.Header().Set("Allow", method)
			openai.MethodNotAllowed(r.Method, r.URL.Path).Write(w)
			return
		}
		h(w, r)
	})
}

// ServeHTTP answers one request. A handler that panics answers 500 and leaves
// the process running.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler {
				panic(v)
			}
			s.log.Error("handler panicked", "path", r.URL.Path, "panic", v)
			openai.Internal("the request could not be served").Write(w)
		}
	}()
	w.Header().Set(engineHeader, s.engine.ID(s.rankOf(r)))
	s.mux.ServeHTTP(w, r)
}

const (
	engineHeader = "X-Sluice-Engine"      // names the engine and rank on every answer
	rankHeader   = "X-data-parallel-rank" // names the rank that a request is for
)

// rankOf is the rank that the request names, 0 if it names none that exists.
func (s *Server) rankOf(r *http.Request) int {
	if n, ok := namedRank(r); ok && n >= 0 && n < s.engine.Ranks() {
		return n
	}
	return 0
}

// namedRank is the rank that a request names, which need not exist. A value that
// is no number names none.
func namedRank(r *http.Request) (int, bool) {
	n, err := strconv.Atoi(r.Header.Get(rankHeader))
	return n, err == nil
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	openai.WriteJSON(w, http.StatusOK, openai.NewModelList(s.model()))
}

func (s *Server) modelByName(w http.ResponseWriter, r *http.Request) {
	m := openai.NewModelList(s.model()).Data[0]
	if r.PathValue("id") != m.ID {
		openai.NoModel(r.PathValue("id")).Write(w)
		return
	}
	openai.WriteJSON(w, http.StatusOK, m)
}

func (s *Server) model() openai.Model {
	return openai.Model{
		ID: s.engine.Config().ServedModelName, Created: s.engine.Started().Unix(), OwnedBy: "sluice", MaxModelLen: s.engine.MaxModelLen(),
	}
}

func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	if err := s.engine.Err(); err != nil {
		failure(err).Write(w)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) endSession(w http.ResponseWriter, r *http.Request) {
	s.engine.EndSession(r.PathValue("id"))
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) reset(w http.ResponseWriter, r *http.Request) {
	err := s.engine.ResetPrefixCache(r.Context())
	switch {
	case err == nil:
		w.WriteHeader(http.StatusOK)
	case errors.Is(err, engine.ErrBusy):
		(&openai.Error{Status: http.StatusConflict, Type: openai.TypeInvalidRequest, Code: "blocks_held", Message: err.Error()}).Write(w)
	default:
		failure(err).Write(w)
	}
}

// serve runs a completion of either kind.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, read func(http.ResponseWriter, *http.Request) (*call, *openai.Error)) {
	c, e := read(w, r)
	if e == nil {
		e = s.headers(c, r)
	}
	if e != nil {
		if c != nil { // a peer may keep KV for what is refused here
			s.engine.Discard(s.rankOf(r), c.params)
		}
		e.Write(w)
		return
	}
	answers, err := s.submit(r.Context(), c)
	if err != nil {
		s.fail(w, c, err)
		return
	}
	defer func() {
		for _, a := range answers {
			if !a.done {
				a.stream.Cancel()
			}
		}
	}()
	w.Header().Set(engineHeader, s.engine.ID(answers[0].stream.Rank()))
	if c.stream {
		s.relay(w, r, c, answers)
	} else {
		s.gather(w, r, c, answers)
	}
}

// fail answers a request that the engine did not take. An append attempt on an
// engine that shuts down is refused like one without a prefix, so that its
// sender takes the other route at once.
func (s *Server) fail(w http.ResponseWriter, c *call, err error) {
	if c.attempt && errors.Is(err, engine.ErrDraining) && s.engine.Config().AppendRefusal == engine.RefuseStatus {
		openai.Miss(openai.MissDraining, len(c.choices[0].Prompt), 0).Write(w)
		return
	}
	failure(err).Write(w)
}

// submit hands all choices to the engine, or none.
func (s *Server) submit(ctx context.Context, c *call) ([]*answer, error) {
	var answers []*answer
	for i, req := range c.choices {
		a := &answer{index: i, text: newText(s.engine.Tokenizer(), c.stops, c.min), alone: c.echo != nil && c.echo.alone}
		if c.tools {
			a.calls = &toolCalls{}
		}
		if c.tokenIDs {
			a.prompt = append([]scheduler.Token(nil), req.Prompt...)
		}
		var err error
		if a.stream, err = s.engine.Submit(ctx, req); err != nil {
			for _, a := range answers {
				a.stream.Cancel()
			}
			return nil, err
		}
		answers = append(answers, a)
	}
	return answers, nil
}

// pieces reads all answers at once and calls use for every piece, in the order
// in which they come; use is called by one goroutine at a time. It ends when all
// answers have, when ctx ends, or when use returns false.
func pieces(ctx context.Context, answers []*answer, use func(piece) bool) error {
	if len(answers) == 1 {
		for a := answers[0]; !a.done; {
			p, err := a.next(ctx)
			if err != nil {
				return err
			}
			a.seen = counts{a.output, a.cached}
			if !use(p) {
				return nil
			}
		}
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var mu sync.Mutex
	var wg sync.WaitGroup
	stopped := false
	for _, a := range answers {
		wg.Go(func() {
			for !a.done {
				p, err := a.next(ctx)
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				a.seen = counts{a.output, a.cached}
				stopped = stopped || !use(p)
				stop := stopped
				mu.Unlock()
				if stop {
					cancel(nil)
					return
				}
			}
		})
	}
	wg.Wait()
	if stopped {
		return nil
	}
	return context.Cause(ctx)
}

func newID() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
