package law

import (
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// public is what a package shows to those who import it, by name.
type public struct {
	dir   string
	names map[string]bool // as a page lists them: types, functions, variables, and constants without a type
	typed map[string]bool // constants that go with a type of the package
	said  map[string]bool // types that another declaration of the package names: whoever uses that one meets them
}

// publicNames reads a package as go doc does. Files of all platforms and build
// tags count.
func publicNames(t *testing.T, dir string) *public {
	t.Helper()
	fset := token.NewFileSet()
	files := parsePackage(t, fset, dir)
	if files == nil {
		return nil
	}
	p := &public{dir: dir, names: map[string]bool{}, typed: map[string]bool{}, said: map[string]bool{}}
	d, err := doc.NewFromFiles(fset, files, path.Join(module, dir), doc.PreserveAST)
	require.NoError(t, err)
	values := func(to map[string]bool, list []*doc.Value) {
		for _, v := range list {
			for _, n := range v.Names {
				if token.IsExported(n) {
					to[n] = true
				}
			}
		}
	}
	functions := func(list []*doc.Func) {
		for _, f := range list {
			p.names[f.Name] = true
		}
	}
	values(p.names, d.Vars)
	values(p.names, d.Consts)
	functions(d.Funcs)
	for _, typ := range d.Types {
		p.names[typ.Name] = true
		values(p.typed, typ.Consts)
		values(p.names, typ.Vars)
		functions(typ.Funcs)
	}
	for _, f := range files {
		says(f, p.said)
	}
	return p
}

// says collects the names that the exported declarations of a file mention, each
// declaration but for its own name: parameters, results, members, methods.
func says(f *ast.File, said map[string]bool) {
	collect := func(own string, n ast.Node) {
		if n == nil {
			return
		}
		var look func(n ast.Node) bool
		look = func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr: // of another package
				return false
			case *ast.Field: // its names are not what it is of
				ast.Inspect(n.Type, look)
				return false
			case *ast.Ident:
				if n.Name != own {
					said[n.Name] = true
				}
			}
			return true
		}
		ast.Inspect(n, look)
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if !d.Name.IsExported() {
				continue
			}
			own := ""
			if d.Recv != nil {
				own = receiver(d).Name
				if !ast.IsExported(own) {
					continue
				}
			}
			collect(own, d.Type)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						collect(s.Name.Name, s.Type)
					}
				case *ast.ValueSpec:
					if s.Names[0].IsExported() && s.Type != nil {
						collect("", s.Type)
					}
				}
			}
		}
	}
}

// listed reads a section of the page about the API: names by package.
func listed(t *testing.T, section string) map[string][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/api.md")
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(page), "\n## "+section+"\n")
	require.True(t, ok, "docs/api.md has no section %q", section)
	text, _, _ = strings.Cut(text, "\n## ")
	lists := map[string][]string{}
	for item := range strings.SplitSeq("\n"+text, "\n- `") {
		dir, rest, ok := strings.Cut(item, "`: ")
		if !ok {
			continue
		}
		rest, _, _ = strings.Cut(rest, "\n\n")
		require.NotContains(t, lists, dir, "named twice")
		lists[dir] = strings.FieldsFunc(rest, func(r rune) bool { return r == ',' || r == ' ' || r == '\n' || r == '.' })
	}
	return lists
}

// The page about the API and go doc name the same: each exported type, function,
// variable and constant of each package that others can import stands on the
// page, and nothing else. Constants of a type go with it.
func TestAPIPageNamesWhatGoDocShows(t *testing.T) {
	lists := listed(t, "Names")
	all := 0
	for _, dir := range publicPackages(t) {
		p := publicNames(t, dir)
		if p == nil {
			continue // a command
		}
		want := slices.Sorted(maps.Keys(p.names))
		all += len(want)
		if got := lists[dir]; !slices.Equal(want, got) {
			missing := slices.DeleteFunc(slices.Clone(want), func(n string) bool { return slices.Contains(got, n) })
			gone := slices.DeleteFunc(slices.Clone(got), func(n string) bool { return slices.Contains(want, n) })
			t.Errorf("docs/api.md, names of %s: not on the page %v, on the page alone %v; in order:\n%s", dir, missing, gone, item(dir, want))
		}
		delete(lists, dir)
	}
	require.Empty(t, lists, "packages that do not exist")
	require.Greater(t, all, 500)
}

// item is a package's entry on the page.
func item(dir string, names []string) string {
	var b strings.Builder
	line := fmt.Sprintf("- `%s`:", dir)
	for i, n := range names {
		if i+1 < len(names) {
			n += ","
		}
		if len(line)+1+len(n) > 130 {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + n
	}
	return b.String() + line
}

// used collects, by folder, the exported names of our packages that a file of
// another package mentions; examples are such, and so are nested modules.
func used(t *testing.T) map[string]map[string]bool {
	t.Helper()
	names := map[string]map[string]bool{}
	err := filepath.WalkDir("../..", func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if n := d.Name(); d.IsDir() && file != "../.." && (strings.HasPrefix(n, ".") || n == "testdata" || n == "bin" || n == "build" || n == "node_modules") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(file, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		imported := map[string]string{} // folder by the name that it has in this file
		for _, im := range f.Imports {
			p, err := strconv.Unquote(im.Path.Value)
			if err != nil {
				return err
			}
			if dir, ours := strings.CutPrefix(p, module+"/"); ours {
				name := path.Base(dir)
				if im.Name != nil {
					name = im.Name.Name
				}
				imported[name] = dir
			}
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && imported[x.Name] != "" {
					dir := imported[x.Name]
					if names[dir] == nil {
						names[dir] = map[string]bool{}
					}
					names[dir][s.Sel.Name] = true
				}
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	return names
}

// What is public is needed: another package or an example uses it, another
// public declaration of its package mentions it, or callers tell errors by it. The
// page about the API says why each of the others is there.
func TestPublicNamesAreNeeded(t *testing.T) {
	reasons := listed(t, "Names that nothing here calls")
	uses := used(t)
	for _, dir := range publicPackages(t) {
		p := publicNames(t, dir)
		if p == nil {
			continue
		}
		var alone []string
		for _, n := range slices.Sorted(maps.Keys(p.names)) {
			if !uses[dir][n] && !p.said[n] && !strings.HasPrefix(n, "Err") && !strings.HasSuffix(n, "Error") {
				alone = append(alone, n)
			}
		}
		if !slices.Equal(alone, reasons[dir]) {
			t.Errorf("docs/api.md gives reasons for %v of %s, nothing here needs %v", reasons[dir], dir, alone)
		}
		delete(reasons, dir)
	}
	require.Empty(t, reasons, "packages that do not exist")
}
