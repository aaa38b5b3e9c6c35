package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// feature is code that is cut out whole: every function of its files does
// nothing and answers zero values. What keeps to the feature's being off must
// not notice.
type feature struct {
	files []string
	keep  []string // functions of these files that others need too
	pkg   string
	tests string // that stay green, as a pattern of go test
}

// appendAttempts are Decoder Append-Prefill in the scheduler, with its governor
// and its leases.
var appendAttempts = feature{
	files: []string{
		"scheduler/append.go", "scheduler/appenddecision.go", "scheduler/appendload.go", "scheduler/governor.go", "scheduler/lease.go", "scheduler/stepmodel.go",
	},
	// A request's own rule about its cached share refuses too.
	keep:  []string{"belowThreshold", "refuse", "judged", "IsDecode", "WorkOf"},
	pkg:   "./scheduler",
	tests: "^(TestSwitchedOffNothingShows|TestDecidesAsTheReference|TestSyncAndAsyncAgree)$",
}

// without runs the feature's tests on code that lacks it.
func without(w io.Writer, f feature) error {
	tmp, err := os.MkdirTemp("", "without")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // a leftover is harmless
	replace := map[string]string{}
	emptied := 0
	for _, name := range f.files {
		text, n, err := empty(name, f.keep)
		if err != nil {
			return err
		}
		emptied += n
		at, err := filepath.Abs(name)
		if err != nil {
			return err
		}
		replace[at] = filepath.Join(tmp, filepath.Base(name))
		if err := os.WriteFile(replace[at], text, 0o600); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return err
	}
	list := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return err
	}
	out, err := exec.Command("go", "test", "-overlay", list, "-count=1", "-v", "-run", f.tests, f.pkg).CombinedOutput()
	if err != nil {
		return fmt.Errorf("without %s: %w\n%s", strings.Join(f.files, ", "), err, out)
	}
	passed := bytes.Count(out, []byte("--- PASS: "))
	if passed == 0 {
		return fmt.Errorf("no test matches %s", f.tests)
	}
	_, err = fmt.Fprintf(w, "%d functions cut out of %d files: %d tests and histories are as before\n", emptied, len(f.files), passed)
	return err
}

// empty is a file whose functions answer zero values, but for those to keep,
// and the number of those functions.
func empty(name string, keep []string) (text []byte, n int, err error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, 0, err
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || slices.Contains(keep, fn.Name.Name) {
			continue
		}
		fn.Body.List = nil
		n++
		if fn.Type.Results == nil {
			continue
		}
		zero := &ast.ReturnStmt{}
		for _, r := range fn.Type.Results.List {
			for range max(len(r.Names), 1) {
				zero.Results = append(zero.Results, &ast.StarExpr{X: &ast.CallExpr{Fun: ast.NewIdent("new"), Args: []ast.Expr{r.Type}}})
			}
		}
		fn.Body.List = []ast.Stmt{zero}
	}
	dropImports(f)
	var out bytes.Buffer
	if err := printer.Fprint(&out, fset, f); err != nil {
		return nil, 0, err
	}
	return out.Bytes(), n, nil
}

// dropImports leaves out what a file no longer uses.
func dropImports(f *ast.File) {
	used := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok {
				used[x.Name] = true
			}
		}
		return true
	})
	for _, d := range f.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.IMPORT {
			continue
		}
		g.Specs = slices.DeleteFunc(g.Specs, func(s ast.Spec) bool {
			p, err := strconv.Unquote(s.(*ast.ImportSpec).Path.Value)
			return err == nil && !used[path.Base(p)]
		})
	}
	f.Decls = slices.DeleteFunc(f.Decls, func(d ast.Decl) bool {
		g, ok := d.(*ast.GenDecl)
		return ok && g.Tok == token.IMPORT && len(g.Specs) == 0
	})
}
