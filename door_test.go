package weir_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/feature"
)

// TestDoorCanBeNamed shows that a feature outside of this repository, which may not import what is below internal,
// can name every type of the door: package feature has another name for it.
func TestDoorCanBeNamed(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "feature/types.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	var named []string
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok && spec.Assign.IsValid() {
			of := spec.Type.(*ast.SelectorExpr)
			named = append(named, of.X.(*ast.Ident).Name+"."+of.Sel.Name)
		}
		return true
	})
	found := map[reflect.Type]bool{}
	for _, of := range []reflect.Type{
		reflect.TypeFor[feature.Feature](), reflect.TypeFor[feature.Program](), reflect.TypeFor[feature.Process](),
	} {
		collectTypes(of, found)
	}
	var internal []string
	for _, of := range slices.Collect(maps.Keys(found)) {
		if strings.HasPrefix(of.PkgPath(), module+"/internal/") {
			internal = append(internal, path.Base(of.PkgPath())+"."+of.Name())
		}
	}
	require.ElementsMatch(t, internal, named)
}

// collectTypes finds the types that a type is made of: its exported fields, its elements, the parameters and the results
// of functions, and the methods of interfaces.
func collectTypes(of reflect.Type, found map[reflect.Type]bool) {
	if found[of] || of.PkgPath() != "" && !strings.HasPrefix(of.PkgPath(), module) {
		return
	}
	found[of] = true
	switch of.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan, reflect.Map:
		collectTypes(of.Elem(), found)
		if of.Kind() == reflect.Map {
			collectTypes(of.Key(), found)
		}
	case reflect.Struct:
		for field := range of.Fields() {
			if field.IsExported() {
				collectTypes(field.Type, found)
			}
		}
	case reflect.Func:
		for in := range of.Ins() {
			collectTypes(in, found)
		}
		for out := range of.Outs() {
			collectTypes(out, found)
		}
	case reflect.Interface:
		for method := range of.Methods() {
			collectTypes(method.Type, found)
		}
	}
}
