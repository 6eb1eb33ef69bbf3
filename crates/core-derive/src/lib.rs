// SPDX-License-Identifier: MIT OR Apache-2.0
//! Derives for the messages of `outrigger-core`.
//!
//! * [`Traverse`](macro@Traverse): one visitor walks every field (the generic traversal of the SFS toolkit).
//! * [`Wire`](macro@Wire): encode and decode every field in declaration order.
//!
//! Both work field by field on structs; `Wire` also works on enums whose variants carry an explicit
//! `#[wire(N)]` number, so that reordering variants never changes the encoding. Types marked `#[wire(internal)]` are not for peers of
//! another release and have no `Layout`.
#![forbid(unsafe_code)]

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Data, DeriveInput, Error, Fields, Ident, LitInt, Result, Variant, parse_macro_input};

/// The pattern that binds every field of a struct or variant, and the names it binds.
fn bindings(fields: &Fields) -> (TokenStream, Vec<Ident>) {
    match fields {
        Fields::Named(named) => {
            let names: Vec<Ident> = named.named.iter().filter_map(|field| field.ident.clone()).collect();
            (quote!({ #(#names),* }), names)
        }
        Fields::Unnamed(unnamed) => {
            let names: Vec<Ident> = (0..unnamed.unnamed.len()).map(|i| format_ident!("f{i}")).collect();
            (quote!(( #(#names),* )), names)
        }
        Fields::Unit => (quote!(), Vec::new()),
    }
}

/// The number in a variant's `#[wire(N)]`.
fn wire_number(variant: &Variant) -> Result<LitInt> {
    let attribute = variant.attrs.iter().find(|attribute| attribute.path().is_ident("wire"));
    match attribute {
        Some(attribute) => attribute.parse_args(),
        None => Err(Error::new_spanned(variant, "every variant needs its stable number: #[wire(N)]")),
    }
}

/// Takes these fields of `owner` off the input; an error names the field.
fn decode(owner: &str, fields: &[Ident]) -> TokenStream {
    let gets = fields.iter().map(|field| {
        let place = format!("{owner}.{field}");
        quote!(let #field = ::outrigger_core::Wire::get(input)
            .map_err(|malformed: ::outrigger_core::wire::Malformed| malformed.in_field(#place))?;)
    });
    quote!(#(#gets)*)
}

fn traverse(input: &DeriveInput) -> Result<TokenStream> {
    let name = &input.ident;
    let body = match &input.data {
        Data::Struct(data) => {
            let (pattern, fields) = bindings(&data.fields);
            quote!(let #name #pattern = self; #( ::outrigger_core::Traverse::traverse(#fields, visitor); )*)
        }
        Data::Enum(data) => {
            let arms = data.variants.iter().map(|variant| {
                let ident = &variant.ident;
                let (pattern, fields) = bindings(&variant.fields);
                quote!(#name::#ident #pattern => { #( ::outrigger_core::Traverse::traverse(#fields, visitor); )* })
            });
            quote!(match self { #(#arms)* })
        }
        Data::Union(_) => return Err(Error::new_spanned(input, "Traverse needs a struct or an enum")),
    };
    Ok(quote! {
        impl ::outrigger_core::Traverse for #name {
            #[allow(unused_variables)]
            fn traverse(&mut self, visitor: &mut dyn ::outrigger_core::Visit) { #body }
        }
    })
}

fn wire(input: &DeriveInput) -> Result<TokenStream> {
    let name = &input.ident;
    let layout = layout(name, input)?;
    let (put, get) = match &input.data {
        Data::Struct(data) => {
            let (pattern, fields) = bindings(&data.fields);
            let decode = decode(&name.to_string(), &fields);
            (
                quote!(let #name #pattern = self; #( ::outrigger_core::Wire::put(#fields, out); )*),
                quote!(#decode Ok(#name #pattern)),
            )
        }
        Data::Enum(data) => wire_enum(name, data)?,
        Data::Union(_) => return Err(Error::new_spanned(input, "Wire needs a struct or an enum")),
    };
    Ok(quote! {
        impl ::outrigger_core::Wire for #name {
            #[allow(unused_variables)]
            fn put(&self, out: &mut Vec<u8>) { #put }
            #[allow(unused_variables)]
            fn get(input: &mut ::outrigger_core::wire::Input) -> Result<Self, ::outrigger_core::wire::Malformed> { #get }
        }
        #layout
    })
}

/// Whether values are exchanged only between processes of one release.
fn is_internal(input: &DeriveInput) -> bool {
    let internal = |attribute: &syn::Attribute| {
        attribute.path().is_ident("wire")
            && attribute.parse_args::<Ident>().is_ok_and(|ident| ident == "internal")
    };
    input.attrs.iter().any(internal)
}

/// The `Layout`: of the numbers that describe the encoding of the fields, each variant's after its own.
fn layout(name: &Ident, input: &DeriveInput) -> Result<TokenStream> {
    if is_internal(input) {
        return Ok(TokenStream::new());
    }
    let of = |fields: &Fields| -> Vec<TokenStream> {
        let layout = |field: &syn::Field| {
            let of_type = &field.ty;
            quote!(<#of_type as ::outrigger_core::wire::Layout>::LAYOUT)
        };
        fields.iter().map(layout).collect()
    };
    let mut all = Vec::new();
    match &input.data {
        Data::Struct(data) => all.extend(of(&data.fields)),
        Data::Enum(data) => {
            for variant in &data.variants {
                let number = wire_number(variant)?;
                all.push(quote!(#number));
                all.extend(of(&variant.fields));
            }
        }
        Data::Union(_) => {}
    }
    Ok(quote! {
        impl ::outrigger_core::wire::Layout for #name {
            const LAYOUT: u32 = ::outrigger_core::wire::layout_of(&[#(#all),*]);
        }
    })
}

fn wire_enum(name: &Ident, data: &syn::DataEnum) -> Result<(TokenStream, TokenStream)> {
    let mut put = Vec::new();
    let mut get = Vec::new();
    for variant in &data.variants {
        let number = wire_number(variant)?;
        let ident = &variant.ident;
        let (pattern, fields) = bindings(&variant.fields);
        put.push(quote! {
            #name::#ident #pattern => {
                ::outrigger_core::Wire::put(&(#number as u16), out);
                #( ::outrigger_core::Wire::put(#fields, out); )*
            }
        });
        let decode = decode(&format!("{name}::{ident}"), &fields);
        get.push(quote! {
            #number => { #decode Ok(#name::#ident #pattern) }
        });
    }
    let what = name.to_string();
    Ok((
        quote!(match self { #(#put)* }),
        quote! {
            match <u16 as ::outrigger_core::Wire>::get(input)? {
                #(#get)*
                _ => Err(::outrigger_core::wire::Malformed::new(#what)),
            }
        },
    ))
}

/// Derives `outrigger_core::Traverse`: visits every field in declaration order.
#[proc_macro_derive(Traverse)]
pub fn derive_traverse(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    traverse(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Derives `outrigger_core::Wire` and `outrigger_core::wire::Layout`: fields in declaration order, enum variants by their `#[wire(N)]` number;
/// for a type with `#[wire(internal)]` only the former.
#[proc_macro_derive(Wire, attributes(wire))]
pub fn derive_wire(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    wire(&input).unwrap_or_else(Error::into_compile_error).into()
}
