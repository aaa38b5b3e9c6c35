package law

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// publicPackages gives the folders of the root module that others can import.
func publicPackages(t *testing.T) (dirs []string) {
	t.Helper()
	for _, f := range moduleFiles(t) {
		if f.test || f.dir == "cmd" || strings.HasPrefix(f.dir, "cmd/") || slices.Contains(strings.Split(f.dir, "/"), "internal") {
			continue
		}
		if !slices.Contains(dirs, f.dir) {
			dirs = append(dirs, f.dir)
		}
	}
	return dirs
}

// parsePackage parses a folder's files without its tests, nil for a command.
func parsePackage(t *testing.T, fset *token.FileSet, dir string) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("../..", dir, "*.go"))
	require.NoError(t, err)
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		if ignored(f) {
			continue
		}
		if f.Name.Name == "main" {
			return nil
		}
		files = append(files, f)
	}
	return files
}

// ignored tells whether a file is no part of its package, as programs that
// write code are.
func ignored(f *ast.File) bool {
	return slices.ContainsFunc(f.Comments, func(c *ast.CommentGroup) bool {
		return c.Pos() < f.Package && strings.HasPrefix(c.List[0].Text, "//go:build ignore")
	})
}

// standard methods mean everywhere what their interfaces say.
var standard = []string{"Error", "Unwrap", "String"}

// undocumented gives the exported names of a file that have no comment which
// says more than the name. Constants may share the comment of their group.
// Fields are not looked at: many are said by their name, type and struct.
func undocumented(f *ast.File) (names []*ast.Ident) {
	need := func(name *ast.Ident, comments ...*ast.CommentGroup) {
		if !name.IsExported() {
			return
		}
		for _, c := range comments {
			if saysMore(name.Name, c.Text()) {
				return
			}
		}
		names = append(names, name)
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || (receiver(d).IsExported() && !slices.Contains(standard, d.Name.Name)) {
				need(d.Name, d.Doc)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					need(s.Name, s.Doc, s.Comment, d.Doc)
					if i, ok := s.Type.(*ast.InterfaceType); ok && s.Name.IsExported() {
						for _, m := range i.Methods.List {
							for _, n := range m.Names {
								need(n, m.Doc, m.Comment)
							}
						}
					}
				case *ast.ValueSpec:
					for _, n := range s.Names {
						need(n, s.Doc, s.Comment, d.Doc)
					}
				}
			}
		}
	}
	return names
}

func receiver(d *ast.FuncDecl) *ast.Ident {
	t := d.Recv.List[0].Type
	for {
		switch x := t.(type) {
		case *ast.StarExpr:
			t = x.X
		case *ast.IndexExpr:
			t = x.X
		case *ast.IndexListExpr:
			t = x.X
		case *ast.Ident:
			return x
		}
	}
}

var (
	words  = regexp.MustCompile(`[A-Za-z0-9]+`)
	filler = []string{"a", "an", "the", "is", "are", "of", "for", "to", "that", "this", "its", "returns", "return", "gives", "default", "value"}
)

// saysMore tells whether a comment has a word that is neither in the name nor
// one that says nothing.
func saysMore(name, comment string) bool {
	var parts []string
	from := 0
	runes := []rune(name)
	for i := 1; i <= len(runes); i++ {
		if i == len(runes) || (unicode.IsUpper(runes[i]) && !unicode.IsUpper(runes[i-1])) {
			parts = append(parts, strings.ToLower(string(runes[from:i])))
			from = i
		}
	}
	known := append(parts, strings.ToLower(name))
	for _, w := range words.FindAllString(strings.ToLower(comment), -1) {
		if !slices.Contains(filler, w) && !slices.Contains(known, w) && !slices.Contains(known, strings.TrimSuffix(w, "s")) {
			return true
		}
	}
	return false
}

func TestExportedNamesAreDocumented(t *testing.T) {
	for _, dir := range publicPackages(t) {
		fset := token.NewFileSet()
		for _, f := range parsePackage(t, fset, dir) {
			for _, n := range undocumented(f) {
				t.Errorf("%s: %s has no comment that says more than its name", fset.Position(n.Pos()), n.Name)
			}
		}
	}
}

func TestSaysMore(t *testing.T) {
	for comment, want := range map[string]bool{
		"": false, "BlockSize.": false, "BlockSize is the size of a block.": false, "BlockSize returns the block size": false,
		"BlockSize in tokens.": true, "BlockSize is how many tokens share a block": true,
	} {
		require.Equal(t, want, saysMore("BlockSize", comment), comment)
	}
}

// Every package has a comment that begins with its name.
func TestPackagesAreDocumented(t *testing.T) {
	root := "../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if n := d.Name(); path != root && (strings.HasPrefix(n, ".") || n == "testdata" || n == "node_modules" || n == "build") {
			return filepath.SkipDir
		}
		paths, err := filepath.Glob(filepath.Join(path, "*.go"))
		require.NoError(t, err)
		code, with := 0, 0
		for _, p := range paths {
			if strings.HasSuffix(p, "_test.go") {
				continue
			}
			code++
			f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ParseComments|parser.PackageClauseOnly)
			require.NoError(t, err)
			if text := f.Doc.Text(); text != "" && !strings.HasPrefix(text, "//") {
				with++
				require.Regexp(t, `^(Package `+f.Name.Name+`|Command \S+|Lib\S+) `, text, p)
			}
		}
		if code > 0 && with == 0 {
			t.Errorf("%s: the package has no comment", path)
		}
		return nil
	})
	require.NoError(t, err)
}

// apiRow matches a package in the tables of docs/api.md, with its promise.
var apiRow = regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` \\| (stable|may change|tests) \\|")

// The page about the API names every package that others can import, and every
// one that is not for tests has an example.
func TestAPIPageNamesEveryPackage(t *testing.T) {
	page, err := os.ReadFile("../../docs/api.md")
	require.NoError(t, err)
	promised := map[string]string{}
	for _, m := range apiRow.FindAllStringSubmatch(string(page), -1) {
		require.NotContains(t, promised, m[1], "named twice")
		promised[m[1]] = m[2]
	}
	for _, dir := range publicPackages(t) {
		if parsePackage(t, token.NewFileSet(), dir) == nil {
			continue // a command
		}
		promise, ok := promised[dir]
		if !ok {
			t.Errorf("docs/api.md does not name %s", dir)
		}
		delete(promised, dir)
		if promise == "tests" {
			continue
		}
		tests, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
		require.NoError(t, err)
		example := slices.ContainsFunc(tests, func(p string) bool {
			text, err := os.ReadFile(p)
			require.NoError(t, err)
			return regexp.MustCompile(`(?m)^func Example\w*\(\)`).Match(text)
		})
		if !example {
			t.Errorf("%s has no Example", dir)
		}
	}
	require.Empty(t, promised, "packages that do not exist")
}

// The map of the README names every folder at the top, below cmd and below internal.
func TestReadmeNamesEveryFolder(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	for _, above := range []string{"", "cmd/", "internal/"} {
		entries, err := os.ReadDir(filepath.Join("../..", above))
		require.NoError(t, err)
		for _, e := range entries {
			name := above + e.Name() + "/"
			if !e.IsDir() || strings.HasPrefix(e.Name(), ".") || slices.Contains([]string{"bin/", "build/", "run/", "cmd/", "internal/"}, name) {
				continue
			}
			require.Contains(t, string(readme), "`"+name+"`")
		}
	}
}

var mdLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Links between documents lead to files and headings that exist.
func TestDocumentsLinkToWhatExists(t *testing.T) {
	root := "../.."
	docs, err := filepath.Glob(root + "/*.md")
	require.NoError(t, err)
	for _, dir := range []string{"/docs", "/docs/measurements", "/ascendrt/acl/emu"} {
		more, err := filepath.Glob(root + dir + "/*.md")
		require.NoError(t, err)
		docs = append(docs, more...)
	}
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		for _, m := range mdLink.FindAllStringSubmatch(string(text), -1) {
			target, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := doc
			if target != "" {
				file = filepath.Join(filepath.Dir(doc), target)
			}
			there, err := os.ReadFile(file)
			require.NoError(t, err, "%s: %s", doc, m[1])
			if heading != "" {
				require.Contains(t, headings(string(there)), heading, "%s: %s", doc, m[1])
			}
		}
	}
}

// headings gives the anchors of a document.
func headings(text string) (anchors []string) {
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			kept := strings.Map(func(r rune) rune {
				switch {
				case r == ' ':
					return '-'
				case r == '-' || unicode.IsLetter(r) || unicode.IsDigit(r):
					return unicode.ToLower(r)
				}
				return -1
			}, strings.TrimSpace(title))
			anchors = append(anchors, kept)
		}
	}
	return anchors
}
